//! The service behind `oncebox serve`: sources, handlers and sinks from a configuration file, HTTP ingest, health and
//! metrics.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use oncebox_server::{Config, serve};
//!
//! let config = Config::read("oncebox.toml".as_ref())?;
//! let stop = async { std::future::pending().await };
//! serve(config, stop, |started| eprintln!("listening on {}", started.address)).await?;
//! # Ok(())
//! # }
//! ```

mod access;
mod api;
pub mod brokers;
mod check;
pub mod config;
pub mod findings;
mod framing;
mod guesses;
pub mod handlers;
mod ingest;
mod keeper;
mod listener;
mod metrics;
mod routes;
mod service;
mod shared;
mod stores;
#[cfg(feature = "otlp")]
pub mod telemetry;
pub mod token;
pub mod view;

pub use check::{Finding, Report, check};
pub use config::Config;
pub use service::{Ended, Started, serve, use_ring};
