//! `oncebox demo` beside the storm itself: what it refuses, how it stops, and that it leaves nothing behind.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oncebox_testkit::DEADLINE;
use serde_json::Value;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncebox"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn oncebox(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary runs")
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_arguments_name_the_thing_and_the_remedy() {
    for (arguments, expected) in [
        (&["demo", "--store", "oracle:x"][..], "use `sqlite:FILE`, `postgres://"),
        (&["demo", "--messages", "0"][..], "--messages"),
        (&["demo", "--messages", "10000001"][..], "--messages"),
        (&["demo", "--messages", "10000000", "--copies", "6"][..], "lower one of them"),
        (&["demo", "--crashes", "18446744073709551615"][..], "--crashes"),
        (&["demo", "--pauses", "18446744073709551615"][..], "--pauses"),
        (
            &["demo", "--messages", "100", "--copies", "1", "--crashes", "100", "--pauses", "1"][..],
            "raise `--messages`",
        ),
        (&["bench", "--store", "mongodb://user:secret@host/db"][..], "use `sqlite:FILE`"),
        (&["demo", "--store", "postgres://user:secret@127.0.0.1:1/db"][..], "cannot be reached"),
        (&["demo", "--store", "mysql://user:secret@127.0.0.1:1/db"][..], "cannot be reached"),
        (&["demo", "--store", "mysql://user:secret@host:port/db"][..], "as in mysql://user@host/database"),
        (&["demo", "--store", "sqlite:"][..], "names no file"),
        (&["demo", "--messages", "-5"][..], "--messages"),
    ] {
        let output = oncebox(arguments);
        let text = error_of(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("secret"), "a password is never shown: {text}");
    }
}

/// Ten kills are too many for them.
#[test]
fn few_messages_need_no_other_setting() {
    for messages in ["1", "60"] {
        let output = oncebox(&["demo", "--json", "--messages", messages, "--seed", "1"]);
        assert!(output.status.success(), "{}", error_of(&output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!(report["effects"].to_string(), messages, "{report}");
        assert!(report["crashes"] == 0, "{report}");
    }
}

#[test]
fn a_file_that_is_there_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = folder.path().join("orders.db");
    for name in ["orders.db", "orders.db-wal", "orders.db-shm", "orders.db-journal"] {
        let file = folder.path().join(name);
        fs::write(&file, "of the user").expect("written");
        for command in ["demo", "bench"] {
            let output = oncebox(&[command, "--store", &format!("sqlite:{}", database.display())]);
            let text = error_of(&output);
            assert_eq!(output.status.code(), Some(2), "{command} {name}: {text}");
            assert!(
                text.contains(&*file.to_string_lossy()) && text.contains("name a file that is not"),
                "{text}"
            );
            assert_eq!(fs::read(&file).expect("it is still there"), b"of the user", "{command} {name}");
        }
        fs::remove_file(&file).expect("removed");
        assert_eq!(names_in(folder.path()), [""; 0], "nothing else was made");
    }
}

#[test]
fn a_new_file_is_used_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("new.db").display());
    let output =
        oncebox(&["demo", "--json", "--messages", "200", "--crashes", "2", "--seed", "5", "--store", &store]);
    assert!(output.status.success(), "{}", error_of(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(
        (&report["seed"], &report["effects"], &report["crashes"]),
        (&5.into(), &200.into(), &2.into())
    );
    assert_eq!(names_in(folder.path()), [""; 0]);
}

#[test]
fn nobody_who_reads_is_no_error() {
    let mut child =
        command(&["demo", "--messages", "50", "--crashes", "0"]).spawn().expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", error_of(&output));
}

/// A demo with a folder for its temporary files, whose runners can be seen.
struct Demo {
    child: Child,
    folder: tempfile::TempDir,
}

/// A process, as `ps` shows it.
struct Runner {
    pid: Pid,
    state: String,
    arguments: String,
}

impl Demo {
    fn start(arguments: &[&str]) -> Self {
        Self::spawn(command(arguments))
    }

    /// Started by somebody who has set what becomes of SIGHUP, as a shell or `nohup` does.
    fn start_with_hangup(how: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("env");
        command.arg(format!("--{how}-signal=HUP")).arg(env!("CARGO_BIN_EXE_oncebox")).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let child = command.env("TMPDIR", folder.path()).spawn().expect("the binary runs");
        Self { child, folder }
    }

    fn tell(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal).expect("it is told");
    }

    /// Without those that are dead and wait for their parent.
    fn runners(&self) -> Vec<Runner> {
        let shown =
            Command::new("ps").args(["-A", "-o", "ppid=,pid=,stat=,args="]).output().expect("ps runs");
        let own = self.child.id().to_string();
        let lines = String::from_utf8_lossy(&shown.stdout).into_owned();
        let runners = lines.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let is_own = words.next()? == own;
            let pid = Pid::from_raw(words.next()?.parse().ok()?);
            let state = words.next()?.to_owned();
            let arguments = words.collect::<Vec<_>>().join(" ");
            let lives = is_own && arguments.contains("demo-runner") && !state.starts_with('Z');
            lives.then_some(Runner { pid, state, arguments })
        });
        runners.collect()
    }

    /// Looks at the runners until they are as they should be.
    fn wait_for(&mut self, what: &str, mut ask: impl FnMut(&[Runner]) -> bool) -> Vec<Runner> {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let runners = self.runners();
            if ask(&runners) {
                return runners;
            }
            assert!(Instant::now() < deadline, "waited in vain for: {what}");
            assert!(self.child.try_wait().expect("it can be asked").is_none(), "it ended before: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn finish(self) -> (Output, tempfile::TempDir) {
        (self.child.wait_with_output().expect("it ends"), self.folder)
    }
}

fn is_dead(runner: &Runner) -> bool {
    kill(runner.pid, None).is_err()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// A runner is frozen at once, and then the demo is told to stop.
fn stopped(signal: Signal, store: &[&str]) -> Vec<Runner> {
    let arguments = ["demo", "--messages", "20000", "--crashes", "0", "--pauses", "2000", "--seed", "3"];
    let mut demo = Demo::start_with_hangup("default", &[&arguments[..], store].concat());
    let runners = demo.wait_for("a frozen runner", |all| all.iter().any(|one| one.state.starts_with('T')));
    demo.tell(signal);
    if signal == Signal::SIGHUP {
        // The shell and the system both say that the terminal is gone: it may hear of it while it cleans up.
        while demo.child.try_wait().expect("it can be asked").is_none() {
            demo.tell(signal);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let (output, folder) = demo.finish();
    assert_eq!(output.status.code(), Some(128 + signal as i32), "{}", error_of(&output));
    assert_eq!(error_of(&output), "oncebox: stopped\n");
    assert!(output.stdout.is_empty());
    assert_eq!(names_in(folder.path()), [""; 0], "no temporary folder is left");
    assert!(!runners.is_empty() && runners.iter().all(is_dead), "no runner is left, not even the frozen one");
    runners
}

#[test]
fn told_to_stop_it_leaves_nothing_behind() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT, Signal::SIGHUP] {
        stopped(signal, &[]);
    }
}

#[test]
fn under_nohup_it_outlives_its_terminal() {
    let mut demo =
        Demo::start_with_hangup("ignore", &["demo", "--json", "--messages", "2000", "--crashes", "0"]);
    demo.wait_for("a runner", |runners| !runners.is_empty());
    demo.tell(Signal::SIGHUP);
    let (output, _folder) = demo.finish();
    assert!(output.status.success(), "{}", error_of(&output));
}

/// A verdict that is never bad proves nothing: an effect is taken away behind its back, and another one made twice.
#[tokio::test]
async fn a_lost_effect_and_a_doubled_one_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("judged.db");
    let store = format!("sqlite:{}", file.display());
    // While one is frozen it cannot come to its end, and the others let go of the file.
    let mut demo = Demo::start(&[
        "demo",
        "--json",
        "--messages",
        "5000",
        "--crashes",
        "0",
        "--pauses",
        "3",
        "--store",
        &store,
    ]);
    demo.wait_for("a runner", |runners| !runners.is_empty());
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file).busy_timeout(DEADLINE);
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_lazy_with(options);
    oncebox_testkit::until("there are effects", || async {
        let effects = sqlx::query_scalar::<_, i64>("select count(*) from ledger").fetch_one(&pool).await;
        effects.is_ok_and(|effects| effects > 10)
    })
    .await;
    let forge = "begin immediate; \
                 delete from ledger where rowid = (select min(rowid) from ledger); \
                 insert into ledger select * from ledger where rowid = (select max(rowid) from ledger); commit";
    sqlx::raw_sql(forge).execute(&pool).await.expect("forged");
    pool.close().await;
    let (output, _folder) = demo.finish();
    assert_eq!(output.status.code(), Some(1), "{}", error_of(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(
        (&report["lost"], &report["doubled"], &report["effects"]),
        (&1.into(), &1.into(), &5000.into())
    );
}

#[tokio::test]
async fn told_to_stop_it_leaves_nothing_behind_on_postgres() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_POSTGRES") else { return not_run("Postgres") };
    let runners = stopped(Signal::SIGINT, &["--store", &url]);
    let pool = sqlx::PgPool::connect(&url).await.expect("Postgres is there");
    let sql = "select count(*) from pg_namespace where nspname = $1";
    let left: i64 = sqlx::query_scalar(sql).bind(schema(&runners)).fetch_one(&pool).await.expect("counted");
    assert_eq!(left, 0);
}

#[tokio::test]
async fn told_to_stop_it_leaves_nothing_behind_on_mariadb() {
    let Ok(url) = std::env::var("ONCEBOX_TEST_MARIADB") else { return not_run("MariaDB") };
    let runners = stopped(Signal::SIGINT, &["--store", &url]);
    let pool = sqlx::MySqlPool::connect(&url).await.expect("MariaDB is there");
    let sql = "select count(*) from information_schema.schemata where schema_name = ?";
    let left: i64 = sqlx::query_scalar(sql).bind(schema(&runners)).fetch_one(&pool).await.expect("counted");
    assert_eq!(left, 0);
}

fn not_run(name: &str) {
    use std::io::Write;
    // Not through `eprintln!`, which the test harness would swallow.
    let text = "stopping the demo; `cargo xtask test` starts a server for it";
    let _ = writeln!(std::io::stderr(), "not run on {name}: {text}");
}

/// The schema that the runners were told to work in.
fn schema(runners: &[Runner]) -> String {
    let mut words = runners[0].arguments.split(' ').skip_while(|word| *word != "--schema");
    words.nth(1).expect("a runner is told its schema").to_owned()
}

/// Frozen from outside, so that the demo does not know and would wait for ever.
#[test]
fn runners_that_live_but_do_nothing_are_an_error_with_the_seed() {
    let mut demo = Demo::start(&[
        "demo",
        "--messages",
        "50000",
        "--processes",
        "1",
        "--crashes",
        "0",
        "--patience",
        "3",
        "--json",
    ]);
    let runners = demo.wait_for("a runner", |runners| !runners.is_empty());
    kill(runners[0].pid, Signal::SIGSTOP).expect("it is frozen");
    let (output, folder) = demo.finish();
    let text = error_of(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("no delivery was acknowledged and no effect was added for 3s"), "{text}");
    assert!(text.contains("to run it again: `--seed "), "{text}");
    assert!(runners.iter().all(is_dead), "no runner is left");
    assert_eq!(names_in(folder.path()), [""; 0], "no temporary folder is left");
}

/// The disk is full before everything is made.
#[test]
fn what_was_half_made_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" demo --store \"sqlite:$1\"";
    let program = env!("CARGO_BIN_EXE_oncebox");
    let output = Command::new("sh").args(["-c", script, program]).arg(folder.path().join("half.db")).output();
    let output = output.expect("sh runs");
    assert_eq!(output.status.code(), Some(2), "{}", error_of(&output));
    assert_eq!(names_in(folder.path()), [""; 0], "{}", error_of(&output));
}
