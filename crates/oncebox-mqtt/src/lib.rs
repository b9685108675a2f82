//! MQTT 5 as a source and a sink of Oncebox.
//!
//! The source keeps a session at the server and acknowledges a message only when it is committed. The sink publishes
//! with QoS 1 or 2 and waits for the server's word on each message.
//!
//! ```no_run
//! use oncebox_core::{Error, Inbox, Store, run};
//! use oncebox_mqtt::{MqttSink, MqttSinkConfig, MqttSource, MqttSourceConfig};
//!
//! async fn serve(inbox: Inbox<impl Store>) -> Result<(), Error> {
//!     let orders = MqttSourceConfig::new("mqtt://localhost", "billing-1").topic("orders/#");
//!     let events = MqttSinkConfig::new("mqtt://localhost").topic("events/{kind}");
//!     run(inbox)
//!         .consume(MqttSource::new("orders", orders)?)
//!         .relay(MqttSink::new(events)?)
//!         .await
//! }
//! ```

mod config;
mod delivery;
mod lot;
mod server;
mod sink;
mod source;
mod subscription;

pub use config::{MqttSinkConfig, MqttSourceConfig, TlsConfig};
pub use sink::MqttSink;
pub use source::{MqttReceipt, MqttSource};
