//! Being told to stop: the first signal that asks for it lets a command clean up, the second one ends it at once.

use std::io::Write;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// Ctrl-C, Ctrl-\, a terminal that is closed, and whoever asks politely.
const ASKING: [SignalKind; 4] =
    [SignalKind::interrupt(), SignalKind::quit(), SignalKind::hangup(), SignalKind::terminate()];

/// Listens for signals from its making on.
///
/// ```ignore
/// let mut stop = Stop::listen()?;
/// let result = stop.unless_told(measure(&target)).await; // dropped when a signal comes
/// target.remove().await?;                                // in any case
/// result.map_err(Cut::into_error)                        // ends the process when a signal came
/// ```
pub(crate) struct Stop {
    first: oneshot::Receiver<i32>,
}

/// Why there is no result.
#[derive(Debug)]
pub(crate) enum Cut {
    Failed(String),
    /// The number of the signal.
    Stopped(i32),
}

impl Stop {
    pub(crate) fn listen() -> Result<Self, String> {
        let (sender, mut signals) = mpsc::channel(2);
        for kind in ASKING {
            let number = kind.as_raw_value();
            if kind == SignalKind::hangup() && is_ignored(number) {
                continue;
            }
            let told = |error| format!("signal {number} cannot be waited for: {error}");
            let mut arriving = signal(kind).map_err(told)?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while arriving.recv().await.is_some() && sender.send(number).await.is_ok() {}
            });
        }
        let (told, first) = oneshot::channel();
        tokio::spawn(async move {
            let Some(number) = signals.recv().await else { return };
            let _ = told.send(number);
            // A terminal that goes away may say so twice, and nobody is impatient then.
            while let Some(number) = signals.recv().await {
                if number != SignalKind::hangup().as_raw_value() {
                    std::process::exit(128 + number);
                }
            }
        });
        Ok(Self { first })
    }

    /// Answers the number of the first signal.
    pub(crate) async fn told(&mut self) -> i32 {
        match (&mut self.first).await {
            Ok(number) => number,
            // The runtime is going down, and this with it.
            Err(_) => std::future::pending().await,
        }
    }

    /// Does the work to its end, or drops it when the first signal comes; the caller cleans up then.
    pub(crate) async fn unless_told<T>(
        &mut self,
        work: impl Future<Output = Result<T, String>>,
    ) -> Result<T, Cut> {
        tokio::select! {
            // What the signal has done to others must not look like an error of theirs.
            biased;
            number = self.told() => Err(Cut::Stopped(number)),
            done = work => done.map_err(Cut::Failed),
        }
    }
}

/// Whether it was ignored when this program was started, as `nohup` does with SIGHUP: then it stays so.
fn is_ignored(signal: i32) -> bool {
    let ignored = std::fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

impl Cut {
    /// The error's text; after a signal the process ends here, with 128 and the signal's number.
    ///
    /// So it comes when everything is cleaned up.
    pub(crate) fn into_error(self) -> String {
        match self {
            Self::Failed(text) => text,
            Self::Stopped(number) => {
                // There may be no terminal any more to say it on.
                let _ = writeln!(std::io::stderr(), "oncebox: stopped");
                std::process::exit(128 + number)
            }
        }
    }
}

impl From<String> for Cut {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}
