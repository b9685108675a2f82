//! Being told to stop: the first SIGTERM or Ctrl-C lets a command clean up, the second one ends it at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

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
        let told = |error: std::io::Error| format!("signals cannot be waited for: {error}");
        let mut terminate = signal(SignalKind::terminate()).map_err(told)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(told)?;
        let (sender, first) = oneshot::channel();
        tokio::spawn(async move {
            let mut next = async || {
                tokio::select! {
                    _ = terminate.recv() => 15,
                    _ = interrupt.recv() => 2,
                }
            };
            let number = next().await;
            let _ = sender.send(number);
            let number = next().await;
            std::process::exit(128 + number);
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

impl Cut {
    /// The error's text; after a signal the process ends here, with 128 and the signal's number.
    ///
    /// So it comes when everything is cleaned up.
    pub(crate) fn into_error(self) -> String {
        match self {
            Self::Failed(text) => text,
            Self::Stopped(number) => {
                eprintln!("oncebox: stopped");
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
