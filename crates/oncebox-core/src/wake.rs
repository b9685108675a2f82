//! Wake-ups inside one process: a hint that there may be work, never proof.

use std::sync::Arc;

use tokio::sync::watch;

/// Rings for everybody who waits; rings nobody hears are remembered once.
#[derive(Debug, Clone)]
pub struct Wake {
    sender: Arc<watch::Sender<u64>>,
}

impl Wake {
    /// A bell nobody has rung.
    pub fn new() -> Self {
        Self { sender: Arc::new(watch::Sender::new(0)) }
    }

    /// Wakes everybody who waits now, or waits next.
    pub fn ring(&self) {
        self.sender.send_modify(|rings| *rings = rings.wrapping_add(1));
    }

    /// A listener that hears every ring from now on.
    pub fn listener(&self) -> Listener {
        Listener { receiver: self.sender.subscribe(), _bell: self.clone() }
    }
}

impl Default for Wake {
    fn default() -> Self {
        Self::new()
    }
}

/// One who waits for a ring.
#[derive(Debug, Clone)]
pub struct Listener {
    receiver: watch::Receiver<u64>,
    // Keeps the sender alive, so that `changed` cannot fail.
    _bell: Wake,
}

impl Listener {
    /// Returns at the next ring, or at once when there was one since the last call.
    pub async fn heard(&mut self) {
        // The sender lives as long as this listener.
        let _ = self.receiver.changed().await;
    }
}
