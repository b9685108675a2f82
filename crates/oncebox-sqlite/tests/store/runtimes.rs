//! A program may have a runtime for each call; what one of them takes away with it keeps nobody else waiting.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use oncebox_core::{Inbox, Message, Received};
use oncebox_sqlite::SqliteStore;
use oncebox_testkit::{Faulty, Plan};
use tokio::runtime::{Builder, Runtime};

use crate::path;

fn lasting() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn short() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn inbox(path: &str, plan: &Plan) -> Inbox<Faulty<SqliteStore>> {
    let store = SqliteStore::open(path).await.unwrap();
    store.migrate().await.unwrap();
    Inbox::new(Faulty::new(store, plan.clone()))
}

fn receive(runtime: &Runtime, inbox: &Inbox<Faulty<SqliteStore>>, id: &str) -> Vec<Received> {
    let messages = [Message::new("order.placed", "body").id(id)];
    let answer = async { tokio::time::timeout(Duration::from_secs(60), inbox.receive(&messages)).await };
    runtime.block_on(answer).expect("it does not wait for ever").unwrap()
}

/// The statement is begun by a task of the runtime, which goes before it has run even once.
#[test]
fn a_runtime_that_goes_away_with_a_call_keeps_no_later_one_waiting() {
    let (directory, plan, lasting) = (tempfile::tempdir().unwrap(), Plan::none(), lasting());
    let inbox = lasting.block_on(inbox(&path(&directory), &plan));
    assert_eq!(receive(&lasting, &inbox, "first"), [Received::New]);
    short().block_on(async {
        let messages = [Message::new("order.placed", "body").id("given up")];
        let mut call = pin!(inbox.receive(&messages));
        let is_pending = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending())).await;
        assert!(is_pending);
    });
    assert_eq!(receive(&lasting, &inbox, "last"), [Received::New]);
}

/// A hint to other processes is put off for a moment; the runtime goes meanwhile.
#[test]
fn a_runtime_that_goes_away_with_a_hint_does_not_keep_later_ones_back() {
    let (directory, plan, lasting) = (tempfile::tempdir().unwrap(), Plan::none(), lasting());
    let inbox = lasting.block_on(inbox(&path(&directory), &plan));
    assert_eq!(receive(&lasting, &inbox, "first"), [Received::New]);
    for number in 0..20 {
        receive(&short(), &inbox, &format!("short {number}"));
    }
    let hints = || plan.calls().get("announce").copied().unwrap_or_default();
    let before = hints();
    assert_eq!(receive(&lasting, &inbox, "last"), [Received::New]);
    let told = oncebox_testkit::until("others are told", || async { hints() > before });
    lasting.block_on(told);
}
