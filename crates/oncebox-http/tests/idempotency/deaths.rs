//! Servers that are killed in the middle of a request, and a client that tries again elsewhere.

use std::any::type_name;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use oncebox_core::ResponseStore;
use oncebox_testkit::{Fault, How, Plan, Side, Subject, until};

use crate::app::{placed, serve_with};
use crate::client::{order, post, request};

/// The variable that makes a test binary a child: lines with its address, the file for its port and where it hangs.
const ORDER: &str = "ONCEBOX_HTTP_CHILD";
/// How often each point is struck.
const ROUNDS: usize = 4;
/// How long the key of a dead process is held.
const LEASE: Duration = Duration::from_secs(600);

/// Where a server is when it is killed: a call of the store that it never comes back from.
const POINTS: [(&str, &str); 6] = [
    ("claim_response", "after"),
    ("begin_response", "before"),
    ("begin_response", "after"),
    ("handler", "inside"),
    ("commit", "before"),
    ("commit", "after"),
];

/// A server process; killed when dropped.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    async fn start<T: Subject>(subject: &T, folder: &Path, method: &str, side: &str) -> Self {
        let file = folder.join("port");
        let _ = std::fs::remove_file(&file);
        let binary = std::env::current_exe().expect("a test binary knows where it is");
        let child = Command::new(binary)
            .args(["--exact", child_of::<T>(), "--nocapture", "--test-threads=1"])
            .env(ORDER, format!("{}\n{}\n{method}\n{side}", subject.address(), file.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the test binary can be started again");
        let mut address = None;
        until("the child listens", || {
            address = std::fs::read_to_string(&file).ok().and_then(|text| text.parse().ok());
            std::future::ready(address.is_some())
        })
        .await;
        Self { child, address: address.expect("it was read") }
    }

    /// `kill -9`, and waits for its end.
    fn kill(mut self) {
        self.child.kill().expect("the child is ours");
        self.child.wait().expect("the child is ours");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn child_of<T>() -> &'static str {
    match type_name::<T>() {
        name if name.contains("sqlite_support") => "sqlite::child",
        name if name.contains("postgres_support") => "postgres::child",
        _ => "mariadb::child",
    }
}

/// A child's work: the same server, hanging at one point for ever.
pub(crate) async fn serve_until_killed<T: Subject>()
where
    T::Store: ResponseStore,
{
    let Ok(told) = std::env::var(ORDER) else { return };
    let told: Vec<&str> = told.split('\n').collect();
    let &[address, file, method, side] = &told[..] else { panic!("an order has four lines") };
    let side = if side == "before" { Side::Before } else { Side::After };
    let method = POINTS.iter().map(|(point, _)| *point).find(|point| *point == method);
    let fault = Fault { method: method.expect("a known point"), call: 1, side, how: How::Hang };
    let subject = Arc::new(T::attach(address).await);
    let server = serve_with(&subject, subject.store(), Plan::with(fault), |layer| layer.lease(LEASE)).await;
    // First elsewhere, so that nobody reads half of it.
    let half = Path::new(file).with_extension("half");
    std::fs::write(&half, server.address.to_string()).unwrap();
    std::fs::rename(&half, file).unwrap();
    std::future::pending::<()>().await;
}

pub(crate) async fn kill_9_anywhere_leaves_one_effect_for_each_key<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let folder = tempfile::tempdir().unwrap();
    // By the survivor's clock every lease of a child is over, so that it need not wait for each.
    subject.clock().advance(2 * LEASE);
    let survivor = serve_with(&subject, subject.store(), Plan::none(), |layer| layer.lease(LEASE)).await;
    let mut keys = Vec::new();
    for (method, side) in POINTS {
        for round in 0..ROUNDS {
            let key = format!("{method} {side} {round}");
            let process = Process::start(&*subject, folder.path(), method, side).await;
            let ask = order(process.address, &key, &key);
            let ask = if method == "handler" { ask.told("wait") } else { ask };
            let dying = tokio::spawn(async move { ask.try_send().await });
            assert_eq!(request(process.address, "GET", "/struck", "").send().await.status, 200);
            process.kill();
            assert_eq!(dying.await.unwrap(), None, "it died before it answered");

            let reply = order(survivor.address, &key, &key).insist().await;
            assert_eq!(reply.status, 201, "{key}: {reply:?}");
            assert_eq!(reply.is_replay(), (method, side) == ("commit", "after"), "{key}: {reply:?}");
            let again = order(survivor.address, &key, &key).send().await;
            assert_eq!((&again.body, again.is_replay()), (&reply.body, true), "{key}");
            keys.push(key);
        }
    }
    keys.sort();
    assert_eq!(placed(&*subject).await, keys);
    assert_eq!(subject.stuck_transactions().await, 0);
}

/// At least once, as the documentation says: nobody knows what the handler had done.
pub(crate) async fn kill_9_without_a_transaction_frees_the_key_after_its_lease<T: Subject>(subject: T)
where
    T::Store: ResponseStore,
{
    let subject = Arc::new(subject);
    let folder = tempfile::tempdir().unwrap();
    let survivor = serve_with(&subject, subject.store(), Plan::none(), |layer| layer.lease(LEASE)).await;
    let process = Process::start(&*subject, folder.path(), "handler", "inside").await;
    let ask = post(process.address, "/mails", "one").header("idempotency-key", "\"a\"").told("wait");
    let dying = tokio::spawn(async move { ask.try_send().await });
    assert_eq!(request(process.address, "GET", "/struck", "").send().await.status, 200);
    process.kill();
    assert_eq!(dying.await.unwrap(), None);
    let ask = post(survivor.address, "/mails", "one").header("idempotency-key", "\"a\"");
    ask.send().await.assert_problem(409, "in-flight");
    subject.clock().advance(LEASE);
    let reply = ask.insist().await;
    assert_eq!((reply.status, reply.is_replay()), (201, false));
    assert!(ask.send().await.is_replay());
    assert_eq!(placed(&*subject).await, ["one", "one"]);
}
