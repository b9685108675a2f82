//! Where log lines go: to stderr, errors only unless `ONCEBOX_LOG` or a configuration says otherwise.

use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

const VARIABLE: &str = "ONCEBOX_LOG";

/// For commands that a person waits for.
pub(crate) fn start() {
    tracing_subscriber::registry().with(human::<Registry>("error")).init();
}

/// For a command that reports what goes wrong itself; the libraries below would only tell it again.
#[cfg(feature = "serve")]
pub(crate) fn start_silent() {
    tracing_subscriber::registry().with(human::<Registry>("off")).init();
}

/// For commands that a person waits for, with a listener of the command's own.
pub(crate) fn start_with<L>(own: L)
where
    L: Layer<tracing_subscriber::layer::Layered<Human, Registry>> + Send + Sync,
{
    tracing_subscriber::registry().with(human::<Registry>("error")).with(own).init();
}

/// For the service: lines for people or for programs, and whoever else listens.
#[cfg(feature = "serve")]
pub(crate) fn start_service(level: &str, json: bool, own: Option<Own>) {
    let lines = if json {
        let lines = tracing_subscriber::fmt::layer().json().flatten_event(true);
        lines.with_writer(std::io::stderr).with_filter(filter(level)).boxed()
    } else {
        human::<Registry>(level)
    };
    tracing_subscriber::registry().with(lines).with(own).init();
}

/// A listener of the service's own, beside its log.
#[cfg(feature = "serve")]
pub(crate) type Own = Box<dyn Layer<tracing_subscriber::layer::Layered<Human, Registry>> + Send + Sync>;

type Human = Box<dyn Layer<Registry> + Send + Sync>;

fn human<S>(level: &str) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span>,
{
    use std::io::IsTerminal;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines =
        lines.with_ansi(std::io::stderr().is_terminal()).fmt_fields(debug_fn(one_line).delimited(" "));
    lines.with_filter(filter(level)).boxed()
}

/// Writes a field so that it stays on its line: what a message or an answer brought may try to look like lines of ours,
/// or to tell the terminal what to do.
fn one_line(writer: &mut Writer<'_>, field: &Field, value: &dyn std::fmt::Debug) -> std::fmt::Result {
    if field.name() != "message" {
        write!(writer, "{}=", field.name())?;
    }
    for character in format!("{value:?}").chars() {
        if character.is_control() {
            write!(writer, "{}", character.escape_default())?;
        } else {
            writer.write_char(character)?;
        }
    }
    Ok(())
}

fn filter(level: &str) -> EnvFilter {
    match (EnvFilter::try_from_env(VARIABLE), "async_nats=warn".parse()) {
        // The debug lines of this client hold the address with the password.
        (Ok(filter), Ok(directive)) => filter.add_directive(directive),
        _ if level == "off" => EnvFilter::new("off"),
        // The level is about Oncebox. What the libraries below tell of each step is of no use here, and some of it is
        // the user's data.
        _ => {
            let others = if level == "error" { "error" } else { "warn" };
            EnvFilter::new(format!("{others},oncebox={level},sqlx=error,hyper=error"))
        }
    }
}
