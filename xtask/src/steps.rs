//! The steps of `cargo xtask test`, in the order a person wants to hear about them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child::{self, Ending};
use crate::error::Error;
use crate::languages::Languages;
use crate::mariadb::{self, PrivateMariadb};
use crate::pgbouncer::PrivatePgBouncer;
use crate::postgres::{PROGRAMS_VARIABLE, PrivatePostgres};
use crate::report::{Outcome, Report};
use crate::{cargo, packages, schemathesis, tidy};

/// The address of the private Postgres server, for tests.
pub const POSTGRES_VARIABLE: &str = "ONCEBOX_TEST_POSTGRES";
/// The data folder of that server.
pub const POSTGRES_DATA_VARIABLE: &str = "ONCEBOX_TEST_POSTGRES_DATA";
/// The address of a private PgBouncer in front of that server.
pub const PGBOUNCER_VARIABLE: &str = "ONCEBOX_TEST_PGBOUNCER";
/// The address of the private MariaDB server, for tests.
pub const MARIADB_VARIABLE: &str = "ONCEBOX_TEST_MARIADB";
/// Set to 1 when every message broker that has a package is installed, so that a missing one fails its tests.
///
/// Those against Kafka may still be left out, because Tansu is only built for the slow tests.
pub const BROKERS_VARIABLE: &str = "ONCEBOX_TEST_BROKERS";
/// Set to 1 when the slow tests are wanted too.
pub const ALL_VARIABLE: &str = "ONCEBOX_TEST_ALL";

const EXAMPLES_PACKAGE: &str = "oncebox-examples";
const EXAMPLE_LIMIT: Duration = Duration::from_secs(120);

/// How much the tests step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// What finishes in a minute or so.
    Usual,
    /// The slow tests as well.
    All,
}

/// Runs every step; a failed one does not keep the later ones from running, unless they need the build.
pub fn run_every(root: &Path, extent: Extent) -> Result<Report, Error> {
    cargo::require_components(root)?;
    let servers = Servers::start(root, extent)?;
    let mut report = Report::default();

    report.step("formatting", || run(cargo::command(root).args(["fmt", "--all", "--check"])))?;
    report.step("clippy", || {
        let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
        run(cargo::command(root).args(clippy))
    })?;
    report.step("rustdoc", || {
        let doc = ["doc", "--workspace", "--no-deps", "--all-features"];
        run(cargo::command(root).args(doc).env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    report.step("tidy", || tidy_step(root))?;
    let built = report.step("build", || {
        run(cargo::command(root).args(["test", "--workspace", "--all-features", "--no-run"]))
    })?;
    if built {
        report.step("tests", || run(&mut servers.tests(root, &[])))?;
        report.step("examples", || examples_step(root, &servers))?;
    } else {
        report.skip("tests", "the build failed");
        report.skip("examples", "the build failed");
    }
    Ok(report)
}

/// Runs only the tests whose names contain one of the filters.
pub fn run_tests(root: &Path, extent: Extent, filters: &[String]) -> Result<Report, Error> {
    let servers = Servers::start(root, extent)?;
    let mut report = Report::default();
    report.step("tests", || run(&mut servers.tests(root, filters)))?;
    Ok(report)
}

/// How many tests of one program run at the same time; read by the test harness itself.
const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";

/// The servers that the tests talk to; they end with this value.
struct Servers {
    // Before the server, so that it ends first.
    pgbouncer: PrivatePgBouncer,
    postgres: PrivatePostgres,
    languages: Languages,
    schemathesis: PathBuf,
    mariadb: PrivateMariadb,
    extent: Extent,
}

impl Servers {
    fn start(root: &Path, extent: Extent) -> Result<Self, Error> {
        packages::require_openssl()?;
        let languages = Languages::prepare(root)?;
        let schemathesis = schemathesis::require()?;
        packages::require_postgres()?;
        let postgres = PrivatePostgres::start()
            .map_err(|error| Error::Environment(format!("cannot start a private Postgres: {error}")))?;
        packages::require_pgbouncer()?;
        let pgbouncer = PrivatePgBouncer::start(postgres.port())
            .map_err(|error| Error::Environment(format!("cannot start a private PgBouncer: {error}")))?;
        println!("private Postgres at {}, through PgBouncer at {}", postgres.url(), pgbouncer.url());
        packages::require_mariadb()?;
        let mariadb = PrivateMariadb::start()
            .map_err(|error| Error::Environment(format!("cannot start a private MariaDB: {error}")))?;
        println!("private MariaDB at {}", mariadb.url());
        require_brokers(extent)?;
        Ok(Self { pgbouncer, postgres, languages, schemathesis, mariadb, extent })
    }

    fn tests(&self, root: &Path, filters: &[String]) -> Command {
        let mut command = cargo::command(root);
        command.args(["test", "--workspace", "--all-features", "--no-fail-fast", "--"]).args(filters);
        // Most tests wait for a server most of the time.
        if std::env::var_os(THREADS_VARIABLE).is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env(THREADS_VARIABLE, (cores * 2).to_string());
        }
        self.announce_to(&mut command);
        command
    }

    /// Tells a program where the servers are.
    fn announce_to(&self, command: &mut Command) {
        self.languages.announce_to(command);
        command
            .env(schemathesis::VARIABLE, &self.schemathesis)
            .env(POSTGRES_VARIABLE, self.postgres.url())
            .env(PGBOUNCER_VARIABLE, self.pgbouncer.url())
            .env(POSTGRES_DATA_VARIABLE, self.postgres.data())
            .env(PROGRAMS_VARIABLE, self.postgres.programs())
            .env(BROKERS_VARIABLE, "1")
            .env(MARIADB_VARIABLE, self.mariadb.url())
            .env(mariadb::PROGRAMS_VARIABLE, self.mariadb.programs());
        match self.extent {
            Extent::Usual => command.env_remove(ALL_VARIABLE),
            Extent::All => command.env(ALL_VARIABLE, "1"),
        };
    }
}

/// Makes sure that the programs are there; the tests of each broker start a server of their own.
fn require_brokers(extent: Extent) -> Result<(), Error> {
    packages::require_rabbitmq()?;
    packages::require_nats()?;
    packages::require_redis()?;
    packages::require_mosquitto()?;
    match extent {
        Extent::Usual => packages::note_tansu(),
        Extent::All => packages::require_tansu()?,
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<Outcome, Error> {
    Ok(match child::run(command)? {
        Ending::Exited(status) if status.success() => Outcome::Passed,
        Ending::Exited(status) => Outcome::Failed(status.to_string()),
        Ending::TooLong => Outcome::Failed("took too long".to_owned()),
    })
}

fn tidy_step(root: &Path) -> Result<Outcome, Error> {
    let problems = match tidy::check(root) {
        Ok(problems) => problems,
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        // A manifest that cargo cannot read; the later steps will say more about it.
        Err(error) => return Ok(Outcome::Failed(error.to_string())),
    };
    for problem in &problems {
        println!("{problem}");
    }
    Ok(if problems.is_empty() { Outcome::Passed } else { Outcome::Failed(tidy::summary(&problems)) })
}

/// Runs each example in an empty folder, so that no example finds the database of its last run.
fn examples_step(root: &Path, servers: &Servers) -> Result<Outcome, Error> {
    let names = cargo::examples(&cargo::metadata(root)?, EXAMPLES_PACKAGE);
    let mut failed = Vec::new();
    for name in &names {
        println!("--> example {name}");
        let folder = tempfile::tempdir()
            .map_err(|error| Error::Environment(format!("cannot create a temporary folder: {error}")))?;
        let mut command = cargo::command(root);
        command.args(["run", "--quiet", "--package", EXAMPLES_PACKAGE, "--example", name]);
        command.arg("--manifest-path").arg(root.join("Cargo.toml")).current_dir(folder.path());
        servers.announce_to(&mut command);
        match child::run_for(&mut command, EXAMPLE_LIMIT)? {
            Ending::Exited(status) if status.success() => {}
            Ending::Exited(status) => failed.push(format!("{name} ({status})")),
            Ending::TooLong => failed.push(format!("{name} (still running after {EXAMPLE_LIMIT:?})")),
        }
    }
    println!("{} examples run", names.len());
    Ok(if failed.is_empty() { Outcome::Passed } else { Outcome::Failed(failed.join(", ")) })
}
