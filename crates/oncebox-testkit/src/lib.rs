//! Proof for Oncebox stores, and tools for tests of services that use Oncebox.
//!
//! - [`store_suite!`] and [`fault_suite!`] run every case of the conformance suites against a store: implement
//!   [`Subject`] for it and write one line each.
//! - [`MemoryBroker`] is a source and a sink that duplicates, reorders and redelivers on purpose.
//! - [`Faulty`] wraps a store and fails at a chosen call.
//! - [`Verdict`] counts effects: lost, doubled, unexpected.
//! - [`poll_then_drop`] gives a future up half-way.
//! - [`until`] waits for a fact with a deadline.

// Test tooling: a failed expectation is a panic, as in any test.
#![allow(clippy::unwrap_used)]

mod broker;
mod cases;
pub mod fault_suite;
mod faults;
mod ledger;
pub mod store_suite;
mod subject;
mod sweep;
mod wait;

pub use broker::{Manners, MemoryBroker, MemorySource};
pub use faults::{Fault, Faulty, How, Plan, Side};
pub use ledger::{Effect, Verdict};
pub use subject::{DriverOf, Facts, Subject, TxOf, recording};
pub use sweep::poll_then_drop;
pub use wait::{DEADLINE, until, within_deadline};
