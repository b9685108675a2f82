//! The engine of Oncebox and the traits that stores, sources and sinks implement.
//!
//! Use the `oncebox` crate in a service; use this one to write a store, a source or a sink.

pub mod admin;
pub mod clock;
mod error;
mod failure;
mod headers;
mod kinds;
mod limits;
mod message;
mod retry;
pub mod store;
mod trace;
mod tx;
mod wake;

pub use error::{Error, ErrorKind};
pub use failure::Failure;
pub use headers::Headers;
pub use kinds::{IntoKinds, Kinds};
pub use limits::{LONGEST_HEADERS, LONGEST_ID, LONGEST_KEY, LONGEST_KIND, LONGEST_SCOPE, Limits};
pub use message::{LANES, Message, identity, lane_of, once_identity};
pub use retry::Backoff;
pub use store::{Once, Received, Store};
pub use trace::TraceContext;
pub use tx::Tx;
pub use wake::{Listener, Wake};
