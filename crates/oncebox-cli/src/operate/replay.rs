//! `replay`: dead letters run again, at a rate, with progress, until Ctrl-C.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oncebox_server::view;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::change::{Which, chosen};
use super::desk::{Desk, Done};
use super::screen::safe;

#[derive(Debug, Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    which: Which,
    /// At most this many in a second.
    #[arg(long, value_parser = rate)]
    rate: Option<u32>,
}

pub(super) async fn replay(desk: &impl Desk, options: Replay) -> Done<bool> {
    let Some(chosen) = chosen(desk, &options.which, "replay").await? else { return Ok(false) };
    if options.which.dry_run {
        return Ok(true);
    }
    let mut stop = stop_signal()?;
    let bar = progress(chosen.count);
    let mut before = 0;
    for filter in &chosen.filters {
        let mut now = desk.start_replay(filter, options.rate).await?;
        while now.state == "running" {
            bar.set_position(before + now.replayed);
            // A step that has begun is done to its end; only the wait between two of them is cut short.
            if stopped(&mut stop, desk.pace(options.rate)).await {
                let ended = desk.cancel_replay(now.replay).await?;
                bar.finish_and_clear();
                println!("replayed {}", before + ended.replayed);
                eprintln!(
                    "stopped: replay {} is {}; what was replayed stays replayed",
                    ended.replay,
                    safe(&ended.state)
                );
                return Ok(false);
            }
            now = desk.step_replay(now.replay).await?;
        }
        before += now.replayed;
        if now.state != "done" {
            bar.finish_and_clear();
            println!("replayed {before}");
            return by_somebody_else(&now);
        }
    }
    bar.finish_and_clear();
    println!("replayed {before}");
    Ok(before > 0)
}

fn by_somebody_else(replay: &view::Replay) -> Done<bool> {
    eprintln!("replay {} was {} by somebody else; see `oncebox audit`", replay.replay, safe(&replay.state));
    Ok(false)
}

/// A bar on a terminal, nothing elsewhere.
fn progress(letters: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(letters), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:20} {pos}/{len}, {eta} left; Ctrl-C stops it");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// True from the first SIGTERM or Ctrl-C on. The second one ends the process at once.
fn stop_signal() -> Done<watch::Receiver<bool>> {
    let told = |error: std::io::Error| format!("signals cannot be waited for: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(told)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(told)?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => 15,
                _ = interrupt.recv() => 2,
            }
        };
        next().await;
        let _ = stop.send(true);
        let number = next().await;
        std::process::exit(128 + number);
    });
    Ok(stopped)
}

async fn stopped(stop: &mut watch::Receiver<bool>, wait: Duration) -> bool {
    let _ = tokio::time::timeout(wait, stop.wait_for(|stop| *stop)).await;
    *stop.borrow()
}

fn rate(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).parse().ok();
    let number = number.filter(|number| (1..=1_000_000).contains(number));
    number.ok_or_else(|| format!("`{text}`: write how many in a second, as in 100/s"))
}
