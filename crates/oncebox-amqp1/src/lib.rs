//! AMQP 1.0 as a source and a sink of Oncebox: Azure Service Bus, ActiveMQ Artemis, Qpid, RabbitMQ 4.
//!
//! The source settles a message when it is committed. The sink waits for the outcome of each message.
//!
//! ```no_run
//! use oncebox_amqp1::{Amqp1Sink, Amqp1SinkConfig, Amqp1Source, Amqp1SourceConfig};
//! use oncebox_core::{Error, Inbox, Store, run};
//!
//! async fn serve(inbox: Inbox<impl Store>) -> Result<(), Error> {
//!     let orders = Amqp1SourceConfig::new("amqp://guest:guest@localhost", "/queues/orders");
//!     let events = Amqp1SinkConfig::new("amqp://guest:guest@localhost", "/exchanges/events");
//!     run(inbox)
//!         .consume(Amqp1Source::new("orders", orders)?)
//!         .relay(Amqp1Sink::new(events)?)
//!         .await
//! }
//! ```

mod config;
mod delivery;
mod guard;
mod lot;
mod receiving;
mod server;
mod silence;
mod sink;
mod source;
mod values;
mod walk;

pub use config::{Amqp1SinkConfig, Amqp1SourceConfig, TlsConfig};
pub use sink::Amqp1Sink;
pub use source::{Amqp1Receipt, Amqp1Source};
