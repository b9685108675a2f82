//! The automation of this repository: `cargo xtask test` and what it needs.
//!
//! [`steps`] lists what a change must pass and [`report`] prints how it went; [`tidy`] checks the invariants that
//! the compiler cannot. The private servers that the tests talk to are [`postgres`], [`mariadb`], [`rabbitmq`] and so on;
//! [`server`] is what they share.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks on its standard streams"
)]

pub mod cargo;
pub mod certificates;
pub mod child;
pub mod error;
pub mod interrupt;
pub mod languages;
pub mod mariadb;
pub mod mosquitto;
pub mod nats;
pub mod packages;
pub mod pgbouncer;
pub mod picture;
pub mod postgres;
pub mod rabbitmq;
pub mod redis;
pub mod report;
pub mod schemathesis;
pub mod server;
pub mod steps;
pub mod tansu;
pub mod tidy;
