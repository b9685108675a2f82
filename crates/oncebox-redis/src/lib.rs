//! Redis Streams as a source and a sink of Oncebox.
//!
//! ```no_run
//! use oncebox_core::{Error, Inbox, Store, run};
//! use oncebox_redis::{RedisSink, RedisSinkConfig, RedisSource, RedisSourceConfig};
//!
//! async fn serve<St: Store>(inbox: Inbox<St>) -> Result<(), Error> {
//!     let orders = RedisSourceConfig::new("redis://localhost", "orders", "oncebox").create();
//!     let events = RedisSinkConfig::new("redis://localhost", "events");
//!     run(inbox)
//!         .consume(RedisSource::new("orders", orders)?)
//!         .relay(RedisSink::new(events)?)
//!         .await
//! }
//! ```

mod config;
mod envelope;
mod held;
mod link;
mod session;
mod sink;
mod source;
mod watch;

pub use config::{RedisSinkConfig, RedisSourceConfig, RedisTls};
pub use sink::RedisSink;
pub use source::{RedisReceipt, RedisSource};
