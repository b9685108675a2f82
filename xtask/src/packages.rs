//! What must be installed on the machine, and installing it on Debian.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::{interrupt, mariadb, mosquitto, nats, pgbouncer, postgres, rabbitmq, redis, tansu};

/// Debian's packages with the server programs, and why we want them.
const POSTGRES: (&str, &str) = ("postgresql", "the tests run against a private Postgres server");
const PYTHON: (&str, &str) = ("python3-venv", "the tests run the examples in Python");
const NODE: (&str, &str) = ("nodejs", "the tests run the examples in Node");
const NPM: (&str, &str) = ("npm", "the tests run the examples in Node");
const PGBOUNCER: (&str, &str) = ("pgbouncer", "the Postgres tests also run through a pooler");
const MARIADB: (&str, &str) = ("mariadb-server", "the tests run against a private MariaDB server");

const RABBITMQ: (&str, &str) = ("rabbitmq-server", "the tests run against a private RabbitMQ server");
const NATS: (&str, &str) = ("nats-server", "the tests run against a private NATS server");
const REDIS: (&str, &str) = ("redis-server", "the tests run against a private Redis server");
const MOSQUITTO: (&str, &str) = ("mosquitto", "the tests run against a private Mosquitto server");

const PKG_CONFIG: (&str, &str) =
    ("pkg-config", "the Kafka client is built with TLS, and looks for OpenSSL with it");
const OPENSSL: (&str, &str) = ("libssl-dev", "the Kafka client is built with TLS");

/// Asked by Debian's packages whether they may start a service; see `invoke-rc.d`.
const SERVICE_POLICY: &str = "/usr/sbin/policy-rc.d";

/// Read by Debian's Postgres packages when they are installed.
const CLUSTER_SETTINGS: &str = "/etc/postgresql-common/createcluster.d";

/// Makes sure that the Postgres server programs are there; as root on Debian it installs them.
///
/// Otherwise fails with the command to run. The installation creates and starts no server of its own.
pub fn require_postgres() -> Result<(), Error> {
    require(POSTGRES, || postgres::programs_folder().map(drop))
}

/// The same for MariaDB.
pub fn require_mariadb() -> Result<(), Error> {
    require(MARIADB, || mariadb::programs_folder().map(drop))
}

/// The same for RabbitMQ.
pub fn require_rabbitmq() -> Result<(), Error> {
    require(RABBITMQ, || rabbitmq::programs_folder().map(drop))
}

/// The same for NATS.
pub fn require_nats() -> Result<(), Error> {
    require(NATS, || nats::program().map(drop))
}

/// The same for Redis.
pub fn require_redis() -> Result<(), Error> {
    require(REDIS, || redis::program().map(drop))
}

/// The same for Mosquitto.
pub fn require_mosquitto() -> Result<(), Error> {
    require(MOSQUITTO, || mosquitto::program().map(drop))
}

/// Makes sure that the Kafka client can be built with all its features; as root on Debian it installs what is missing.
pub fn require_openssl() -> Result<(), Error> {
    require(PKG_CONFIG, || answers("pkg-config", &["--version"]))?;
    require(OPENSSL, || answers("pkg-config", &["--exists", "openssl"]))
}

/// Makes sure that Tansu, which has no package, is built; that takes 10 to 30 minutes when it is not.
pub fn require_tansu() -> Result<(), Error> {
    tansu::build()
}

/// Says so when Tansu is not built, for those who do not want to wait for it now.
pub fn note_tansu() {
    if let Err(missing) = tansu::program() {
        println!("tests against a Kafka server do not run: {missing}");
    }
}

/// Makes sure that PgBouncer is there; as root on Debian it installs it.
///
/// Otherwise fails with the command to run.
pub fn require_pgbouncer() -> Result<(), Error> {
    require(PGBOUNCER, || pgbouncer::program().map(drop))
}

/// Makes sure that Python can make environments; as root on Debian it installs what is missing.
pub fn require_python() -> Result<(), Error> {
    require(PYTHON, || answers("python3", &["-c", "import ensurepip, venv"]))
}

/// Makes sure that Node and its package manager are there; as root on Debian it installs them.
pub fn require_node() -> Result<(), Error> {
    require(NODE, || answers("node", &["--version"]))?;
    require(NPM, || answers("npm", &["--version"]))
}

fn answers(program: &str, arguments: &[&str]) -> io::Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        _ => {
            Err(io::Error::new(io::ErrorKind::NotFound, format!("`{program} {}` fails", arguments.join(" "))))
        }
    }
}

fn require((package, why): (&str, &str), find: impl Fn() -> io::Result<()>) -> Result<(), Error> {
    let Err(missing) = find() else { return Ok(()) };
    if !Path::new("/usr/bin/apt-get").exists() {
        return Err(Error::Environment(missing.to_string()));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::Environment(format!(
            "{package} is not installed and only root can install it: {why}; \
             run `sudo apt-get update && sudo apt-get install --yes --no-install-recommends {package}`"
        )));
    }
    println!("installing {package}: {why}");
    install(package).and_then(|()| find()).map_err(|error| {
        Error::Environment(format!("cannot install {package}: {error}; install it by hand and start again"))
    })?;
    interrupt::check()
}

fn install(package: &str) -> io::Result<()> {
    let _no_cluster = NoMainCluster::new(Path::new(CLUSTER_SETTINGS))?;
    let _no_service = NoServices::new(Path::new(SERVICE_POLICY))?;
    let install = ["install", "--yes", "--no-install-recommends", package];
    // A fresh image has no package lists at all; an old one has lists that name files no longer there.
    if has_package_lists() && apt_get(&install).is_ok() {
        return Ok(());
    }
    apt_get(&["update"])?;
    apt_get(&install)
}

fn has_package_lists() -> bool {
    let Ok(lists) = fs::read_dir("/var/lib/apt/lists") else { return false };
    lists.flatten().any(|list| list.file_name().to_string_lossy().contains("_Packages"))
}

/// Runs apt-get to its end even when interrupted: a package installed half-way would have to be repaired by hand.
fn apt_get(arguments: &[&str]) -> io::Result<()> {
    let status = Command::new("apt-get")
        .args(["--quiet=2", "--option=Dpkg::Use-Pty=0"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .process_group(0)
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("`apt-get {}` ended with {status}", arguments.join(" "))))
}

/// Keeps Debian's Postgres packages from creating and starting a server on port 5432, until dropped.
struct NoMainCluster {
    settings: PathBuf,
    created_folder: Option<PathBuf>,
}

impl NoMainCluster {
    fn new(folder: &Path) -> io::Result<Self> {
        let created_folder = (!folder.exists()).then(|| folder.to_owned());
        fs::create_dir_all(folder)?;
        let settings = folder.join("oncebox-xtask.conf");
        fs::write(&settings, "create_main_cluster = false\n")?;
        Ok(Self { settings, created_folder })
    }
}

impl Drop for NoMainCluster {
    fn drop(&mut self) {
        // Nothing better can be done with a failure: the file would only keep its harmless effect.
        let _ = fs::remove_file(&self.settings);
        if let Some(folder) = &self.created_folder {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Keeps Debian's packages from starting any service, until dropped. A policy that is there already is left alone.
struct NoServices {
    created: Option<PathBuf>,
}

impl NoServices {
    fn new(policy: &Path) -> io::Result<Self> {
        if policy.exists() {
            return Ok(Self { created: None });
        }
        // 101: the action is forbidden.
        fs::write(policy, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(policy, fs::Permissions::from_mode(0o755))?;
        Ok(Self { created: Some(policy.to_owned()) })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(policy) = &self.created {
            let _ = fs::remove_file(policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_setting_leaves_nothing_behind() {
        let machine = tempfile::tempdir().unwrap();
        let folder = machine.path().join("createcluster.d");
        let setting = NoMainCluster::new(&folder).unwrap();
        let text = fs::read_to_string(folder.join("oncebox-xtask.conf")).unwrap();
        assert_eq!(text, "create_main_cluster = false\n");
        drop(setting);
        assert!(!folder.exists());
    }

    #[test]
    fn services_stay_off_during_an_installation_only() {
        let machine = tempfile::tempdir().unwrap();
        let policy = machine.path().join("policy-rc.d");
        let no_services = NoServices::new(&policy).unwrap();
        assert_eq!(Command::new(&policy).status().unwrap().code(), Some(101));
        drop(no_services);
        assert!(!policy.exists());

        fs::write(&policy, "theirs").unwrap();
        drop(NoServices::new(&policy).unwrap());
        assert_eq!(fs::read_to_string(&policy).unwrap(), "theirs");
    }

    #[test]
    fn a_settings_folder_that_was_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        drop(NoMainCluster::new(folder.path()).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
