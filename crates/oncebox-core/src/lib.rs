//! The engine of Oncebox and the traits that stores, sources and sinks implement.
//!
//! Use the `oncebox` crate in a service; use this one to write a store, a source or a sink.

pub mod access;
pub mod admin;
mod arrival;
pub mod clock;
mod counters;
pub mod drift;
pub mod durations;
mod engine;
mod error;
mod extract;
mod failure;
mod gate;
pub mod gathering;
mod handler;
mod headers;
mod inbox;
mod json_pointer;
mod kinds;
mod limits;
pub mod mapping;
mod message;
mod packed;
pub mod recent;
pub mod responses;
mod retry;
mod run;
mod sink;
mod source;
pub mod store;
mod stored;
mod trace;
mod tx;
mod wake;

pub use counters::{Counter, Counters};
pub use error::{Error, ErrorKind};
pub use extract::{Attempt, Batch, Call, Extract, Json, State};
pub use failure::Failure;
pub use gate::Gate;
pub use handler::{Handler, NamedHandler, handler};
pub use headers::Headers;
pub use inbox::{Inbox, Processed};
pub use kinds::{IntoKinds, Kinds};
pub use limits::{LONGEST_HEADERS, LONGEST_ID, LONGEST_KEY, LONGEST_KIND, LONGEST_SCOPE, Limits};
pub use message::{DEFAULT_SCOPE, LANES, Message, identity, lane_of, once_identity};
pub use responses::ResponseStore;
pub use retry::Backoff;
pub use run::{Run, run};
pub use sink::{Relay, SendFailure, Sink};
pub use source::{Incoming, Settle, Source, SourceStatus, UNREADABLE};
pub use store::{Once, Received, Store};
pub use trace::TraceContext;
pub use tx::Tx;
pub use wake::{Listener, Wake};
