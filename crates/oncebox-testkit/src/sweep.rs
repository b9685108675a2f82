//! Gives a future up half-way: the tool of the await-drop sweep.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::Notify;

use crate::wait::DEADLINE;

/// Polls a future at most `polls` times, then drops it; answers its output when it was ready by then.
///
/// Between two polls it waits until the future asks to be polled, so `polls` counts the places at which the future
/// really waited, and a sweep over 0, 1, 2, … drops it at each of them.
///
/// # Panics
/// When a future that is pending is not woken within [`DEADLINE`].
pub async fn poll_then_drop<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let bell = Arc::new(Bell(Notify::new()));
    let waker = Waker::from(bell.clone());
    for _ in 0..polls {
        let polled = poll_fn(|_| Poll::Ready(future.as_mut().poll(&mut Context::from_waker(&waker)))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        let woken = tokio::time::timeout(DEADLINE, bell.0.notified()).await;
        assert!(woken.is_ok(), "a pending future was not woken within {DEADLINE:?}");
    }
    None
}

struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Polls a future a few times, a moment apart, and drops it: for futures that wait for something that does not come.
pub(crate) async fn poll_a_moment_then_drop<F: Future>(future: F, moments: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..=moments {
        let moment = tokio::time::sleep(std::time::Duration::from_micros(300));
        tokio::select! {
            biased;
            output = &mut future => return Some(output),
            () = moment => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_is_dropped_after_the_polls_it_was_given() {
        let yielding = || async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(poll_then_drop(yielding(), 0).await, None);
        assert_eq!(poll_then_drop(yielding(), 2).await, None);
        assert_eq!(poll_then_drop(yielding(), 3).await, Some(7));
    }
}
