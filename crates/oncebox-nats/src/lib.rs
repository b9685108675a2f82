//! NATS JetStream as a source and a sink of Oncebox.
//!
//! ```no_run
//! use oncebox_core::{Error, Inbox, Store, run};
//! use oncebox_nats::{NatsSink, NatsSinkConfig, NatsSource, NatsSourceConfig};
//!
//! async fn serve<St: Store>(inbox: Inbox<St>) -> Result<(), Error> {
//!     let orders = NatsSourceConfig::new("nats://localhost", "ORDERS", "oncebox").create(["orders.>"]);
//!     let events = NatsSinkConfig::new("nats://localhost").prefix("events");
//!     run(inbox)
//!         .consume(NatsSource::new("orders", orders)?)
//!         .relay(NatsSink::new(events)?)
//!         .await
//! }
//! ```

mod api;
mod config;
mod envelope;
mod held;
mod link;
mod session;
mod sink;
mod source;
mod unparsed;

pub use config::{NatsAuth, NatsRetention, NatsSinkConfig, NatsSourceConfig, NatsTls};
pub use sink::NatsSink;
pub use source::{NatsReceipt, NatsSource};
