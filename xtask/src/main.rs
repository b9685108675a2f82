//! `cargo xtask`: the commands that build, test and check this repository.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks on its standard streams"
)]

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use xtask::error::Error;
use xtask::mariadb::{self, PrivateMariadb};
use xtask::mosquitto::PrivateMosquitto;
use xtask::nats::PrivateNats;
use xtask::pgbouncer::PrivatePgBouncer;
use xtask::postgres::{self, PROGRAMS_VARIABLE, PrivatePostgres, StopMode};
use xtask::rabbitmq::PrivateRabbitmq;
use xtask::redis::PrivateRedis;
use xtask::report::Report;
use xtask::steps::{
    self, Extent, MARIADB_VARIABLE, PGBOUNCER_VARIABLE, POSTGRES_DATA_VARIABLE, POSTGRES_VARIABLE,
};
use xtask::tansu::PrivateTansu;
use xtask::{cargo, interrupt, packages, picture, tidy};

/// Builds, tests and checks this repository.
///
/// Exit code 0: fine; 1: a step failed; 2: the call or the machine is not as needed; 130: interrupted.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run everything a change must pass; as root on Debian, install what is missing first.
    Test {
        /// Run the slow tests as well.
        #[arg(long)]
        all: bool,
        /// Run only the tests whose name contains one of these words, and no other step.
        filter: Vec<String>,
    },
    /// Check the invariants that the compiler cannot.
    Tidy,
    /// Start a private Postgres, print the variables for `cargo test`, and keep it until interrupted.
    Postgres,
    /// Start a private MariaDB, print the variables for `cargo test`, and keep it until interrupted.
    Mariadb,
    /// Start a private RabbitMQ, print its address, and keep it until interrupted.
    Rabbitmq,
    /// Start a private NATS with JetStream, print its address, and keep it until interrupted.
    Nats,
    /// Start a private Redis, print its address, and keep it until interrupted.
    Redis,
    /// Start a private Mosquitto (MQTT), print its address, and keep it until interrupted.
    Mosquitto,
    /// Start a private Tansu (Kafka), print its address, and keep it until interrupted; build it when it is not there.
    Tansu,
    /// Run the demo and draw what it prints, for the README.
    Picture,
    /// Restart the private Postgres of another process.
    #[command(hide = true)]
    PostgresRestart {
        /// Its data folder.
        #[arg(long)]
        data: PathBuf,
        /// How it is stopped.
        #[arg(long)]
        mode: Mode,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    Fast,
    Immediate,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match interrupt::install().and_then(|()| act(arguments.command)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn act(action: Action) -> Result<ExitCode, Error> {
    let root = cargo::root();
    match action {
        Action::Test { all, filter } => {
            let extent = if all { Extent::All } else { Extent::Usual };
            let report = if filter.is_empty() {
                steps::run_every(&root, extent)?
            } else {
                steps::run_tests(&root, extent, &filter)?
            };
            Ok(conclude(&report))
        }
        Action::Picture => {
            println!("{}", picture::draw(&root)?);
            Ok(ExitCode::SUCCESS)
        }
        Action::Tidy => {
            let problems = tidy::check(&root)?;
            for problem in &problems {
                println!("{problem}");
            }
            println!("{}", tidy::summary(&problems));
            Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Action::Postgres => keep_postgres(),
        Action::Mariadb => keep_mariadb(),
        Action::Rabbitmq => {
            packages::require_rabbitmq()?;
            keep("RabbitMQ", PrivateRabbitmq::start(), PrivateRabbitmq::url, PrivateRabbitmq::stop)
        }
        Action::Nats => {
            packages::require_nats()?;
            keep("NATS", PrivateNats::start(), PrivateNats::url, PrivateNats::stop)
        }
        Action::Redis => {
            packages::require_redis()?;
            keep("Redis", PrivateRedis::start(), PrivateRedis::url, PrivateRedis::stop)
        }
        Action::Mosquitto => {
            packages::require_mosquitto()?;
            keep("Mosquitto", PrivateMosquitto::start(), PrivateMosquitto::url, PrivateMosquitto::stop)
        }
        Action::Tansu => {
            packages::require_tansu()?;
            keep("Tansu", PrivateTansu::start(), PrivateTansu::url, PrivateTansu::stop)
        }
        Action::PostgresRestart { data, mode } => {
            let mode = match mode {
                Mode::Fast => StopMode::Fast,
                Mode::Immediate => StopMode::Immediate,
            };
            postgres::restart_server(&data, mode).map_err(environment)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn conclude(report: &Report) -> ExitCode {
    println!("\n{}", report.table());
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn keep_postgres() -> Result<ExitCode, Error> {
    packages::require_postgres()?;
    let postgres = PrivatePostgres::start().map_err(environment)?;
    println!("export {POSTGRES_VARIABLE}={}", postgres.url());
    packages::require_pgbouncer()?;
    let pgbouncer = PrivatePgBouncer::start(postgres.port()).map_err(environment)?;
    println!("export {POSTGRES_DATA_VARIABLE}={}", postgres.data().display());
    println!("export {PROGRAMS_VARIABLE}={}", postgres.programs().display());
    println!("export {PGBOUNCER_VARIABLE}={}", pgbouncer.url());
    eprintln!("Postgres runs until you press Ctrl-C");
    wait_for_interrupt();
    drop(pgbouncer);
    postgres.stop().map_err(environment)?;
    Ok(ExitCode::SUCCESS)
}

fn keep_mariadb() -> Result<ExitCode, Error> {
    packages::require_mariadb()?;
    let mariadb = PrivateMariadb::start().map_err(environment)?;
    println!("export {MARIADB_VARIABLE}={}", mariadb.url());
    println!("export {}={}", mariadb::PROGRAMS_VARIABLE, mariadb.programs().display());
    eprintln!("MariaDB runs until you press Ctrl-C");
    wait_for_interrupt();
    mariadb.stop().map_err(environment)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the address of a server and keeps it until interrupted.
fn keep<S>(
    name: &str,
    started: io::Result<S>,
    url: impl FnOnce(&S) -> String,
    stop: impl FnOnce(S) -> io::Result<()>,
) -> Result<ExitCode, Error> {
    let server = started.map_err(environment)?;
    println!("{}", url(&server));
    eprintln!("{name} runs until you press Ctrl-C");
    wait_for_interrupt();
    stop(server).map_err(environment)?;
    Ok(ExitCode::SUCCESS)
}

fn wait_for_interrupt() {
    while interrupt::check().is_ok() {
        thread::sleep(Duration::from_millis(50));
    }
}

fn environment(error: io::Error) -> Error {
    Error::Environment(error.to_string())
}
