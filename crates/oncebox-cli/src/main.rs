//! The `oncebox` command.
//!
//! Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 a check failed, 2 an error, 128 and the number
//! of a signal that ended it.

// This is the one crate that talks to a person.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
#[cfg(feature = "serve")]
mod check;
mod demo;
mod log;
mod migrate;
#[cfg(feature = "serve")]
mod operate;
#[cfg(feature = "serve")]
mod serve;
mod shell;
mod stop;
mod target;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Makes each message count exactly once in effect.
#[derive(Debug, Parser)]
#[command(name = "oncebox", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one in a process")]
enum Command {
    /// Run the service: sources, handlers and sinks of a configuration file, or of none.
    #[cfg(feature = "serve")]
    Serve(serve::Options),
    /// Validate a configuration, connect to everything in it, and say what would run.
    #[cfg(feature = "serve")]
    Check(check::Options),
    /// At-least-once traffic into processes that are killed at random, then the count.
    Demo(demo::Options),
    /// What a store can do, beside the same server's floor and the plain recipe.
    Bench(bench::Options),
    /// Bring a store's tables up to date, say how they are, or print the SQL that makes them.
    Migrate(migrate::Options),
    #[cfg(feature = "serve")]
    #[command(flatten)]
    Operate(operate::Operation),
    /// Print a script with which a shell completes these commands.
    Completions(shell::Completions),
    /// Print the page for `man`, or write one per command into a folder.
    Man(shell::Man),
    /// One process of the demo.
    #[command(hide = true)]
    DemoRunner(demo::runner::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match &cli.command {
        // Logs as its configuration says.
        #[cfg(feature = "serve")]
        Command::Serve(_) => {}
        #[cfg(feature = "serve")]
        Command::Check(_) => log::start_silent(),
        Command::Bench(_) => log::start_with(bench::statement_counter()),
        _ => log::start(),
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("the runtime could not start: {error}")),
    };
    let result = runtime.block_on(async {
        match cli.command {
            #[cfg(feature = "serve")]
            Command::Serve(options) => serve::serve(options).await,
            #[cfg(feature = "serve")]
            Command::Check(options) => check::check(options).await,
            Command::Demo(options) => demo::demo(options).await,
            // On a thread that waits for the network itself, as in a service: the main thread would have to be woken by
            // another one for every answer.
            Command::Bench(options) => match tokio::spawn(bench::bench(options)).await {
                Ok(done) => done,
                Err(error) => Err(error.to_string()),
            },
            Command::Migrate(options) => migrate::migrate(options).await,
            #[cfg(feature = "serve")]
            Command::Operate(operation) => operate::operate(operation).await,
            Command::Completions(options) => shell::completions(&Cli::command(), &options),
            Command::Man(options) => shell::man(&Cli::command(), &options),
            Command::DemoRunner(options) => demo::runner::work(options).await.map(|()| true),
        }
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => fail(&error),
    }
}

fn fail(error: &str) -> ExitCode {
    // Whether anybody can read it or not.
    let _ = writeln!(std::io::stderr(), "oncebox: {error}");
    ExitCode::from(2)
}
