//! Proof for Oncebox stores and brokers, and tools for tests of services that use Oncebox.
//!
//! - [`store_suite!`] and [`fault_suite!`] run every case of the conformance suites against a store: implement
//!   [`Subject`] for it and write one line each.
//! - [`broker_suite!`] does the same for the source and the sink of a broker: implement [`BrokerSubject`].
//! - [`Proxy`] stands between a client and a server and cuts or freezes their connections.
//! - [`MemoryBroker`] is a source and a sink that duplicates, reorders and redelivers on purpose.
//! - [`Faulty`] wraps a store and fails at a chosen call.
//! - [`Verdict`] counts effects: lost, doubled, unexpected.
//! - [`poll_then_drop`] gives a future up half-way.
//! - [`until`] waits for a fact with a deadline.

// Test tooling: a failed expectation is a panic, as in any test.
#![allow(clippy::unwrap_used)]

mod broker;
pub mod broker_suite;
mod cases;
pub mod fault_suite;
mod faults;
mod fixtures;
mod ledger;
mod proxy;
pub mod store_suite;
mod subject;
mod sweep;
mod wait;

pub use broker::{Manners, MemoryBroker, MemorySource};
pub use broker_suite::{BrokerFacts, BrokerSubject};
pub use faults::{Fault, Faulty, How, Plan, Side};
pub use ledger::{Effect, Verdict};
pub use proxy::Proxy;
pub use subject::{DriverOf, Facts, Subject, TxOf, recording};
pub use sweep::poll_then_drop;
pub use wait::{DEADLINE, until, within_deadline};
