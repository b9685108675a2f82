//! Every future of the store may be dropped at any await: afterwards the database can be written at once.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use oncebox_core::Store;
use oncebox_core::store::{
    Arrival, AskLease, AskOutgoing, Claim, Commit, Connection, Count, Outcome, Park, ParkState, ReadInline,
    Retention, SendOutcome, Sent, Settlement, Token,
};

use crate::{Fixture, LIMITS, SECOND, fixture, moved, registration, text};

/// Polls a future this often, then drops it; true when it finished.
async fn poll_times<F: Future>(times: usize, future: F) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let ready = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if ready {
            return true;
        }
        // Lets the connection's thread answer.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

async fn assert_writable(fixture: &Fixture, what: &str) {
    let started = Instant::now();
    let id = format!("{what}-{:?}", started);
    // Another process can write, and so can we.
    let options = (*fixture.store.pool().connect_options()).clone().busy_timeout(Duration::from_secs(2));
    let mut rival = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
    sqlx::raw_sql("begin immediate; rollback")
        .execute(&mut rival)
        .await
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    fixture.store.receive(&[Arrival::new(text(&id))]).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(started.elapsed() < Duration::from_secs(2), "{what}: {:?}", started.elapsed());
    // What was stored is there for everybody, so it was not written into somebody's open transaction.
    let count: i64 = sqlx::query_scalar("select count(*) from oncebox_log where id = ?1")
        .bind(id)
        .fetch_one(&mut rival)
        .await
        .unwrap();
    assert_eq!(count, 1, "{what}");
}

macro_rules! sweep {
    ($fixture:ident, $name:literal, $future:expr) => {
        for times in 0.. {
            let finished = poll_times(times, async {
                let _ = $future.await;
            })
            .await;
            assert_writable(&$fixture, $name).await;
            if finished {
                break;
            }
            assert!(times < 200, "{} does not finish", $name);
        }
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_future_never_leaves_a_transaction_open() {
    let fixture = fixture().await;
    fixture.register("h", true).await;
    let store = &fixture.store;
    let park = |id: String, state| Park {
        handler: "h".into(),
        message: text(&id).key("k"),
        state,
        attempts: 1,
        error: Some("e".into()),
    };
    {
        let tx = store.begin_plain(LIMITS).await.unwrap();
        let parked = (0..200).map(|n| park(format!("parked-{n}"), ParkState::Ready(Duration::ZERO)));
        let outgoing = (0..200).map(|n| text(&format!("out-{n}")).key(n)).collect();
        store.commit(tx, Commit { park: parked.collect(), outgoing, ..Commit::default() }).await.unwrap();
    }
    let messages: Vec<_> = (0..300).map(|n| text(&format!("swept-{n}"))).collect();
    let arrivals: Vec<Arrival> = Arrival::all(&messages).collect();
    let claim = Claim { handler: "h", token: Token(1), lanes: 4, limit: 10 };
    let ask = AskLease { handler: "h", token: Token(2), limit: 3, lease_for: SECOND, ordered: true };
    let outgoing = AskOutgoing { sink: "", token: Token(3), limit: 3, lease_for: SECOND };
    let counts = [Count { handler: "h".into(), name: "n".into(), value: 1 }];
    let handlers = [registration("h", true), registration("g", false)];

    sweep!(fixture, "migrate", store.migrate());
    sweep!(fixture, "register", store.register(&handlers));
    sweep!(fixture, "receive", store.receive(&arrivals));
    sweep!(fixture, "claim", store.claim(&claim));
    sweep!(fixture, "release", store.release("h", Token(1)));
    sweep!(fixture, "begin_plain", store.begin_plain(LIMITS));
    sweep!(fixture, "begin_lanes", fixture.batch("g", Token(7)));
    sweep!(fixture, "begin_inline", async {
        let inline = ReadInline { arrivals: &arrivals, ordered: &["h"], limits: LIMITS };
        store.begin_inline(&inline).await.unwrap();
    });
    sweep!(fixture, "rollback", async {
        let mut tx = store.begin_plain(LIMITS).await.unwrap();
        let _ = sqlx::query("insert into effect (note) values ('dropped')").execute(&mut *tx).await;
        tx.rollback().await;
    });
    assert_eq!(fixture.number("select count(*) from effect").await, 0);
    store.release("g", Token(7)).await.unwrap();
    for times in 0..200 {
        let finished = poll_times(times, async {
            store.release("g", Token(7)).await.unwrap();
            let (mut tx, rows) = fixture.batch("g", Token(7)).await;
            sqlx::query("insert into effect (note) values (null)").execute(&mut *tx).await.unwrap();
            let park =
                vec![Park { handler: "g".into(), ..park(format!("swept-commit-{times}"), ParkState::Dead) }];
            let commit =
                Commit { park, outgoing: vec![text("x").to("sweep")], ..moved("g", Token(7), &rows) };
            store.commit(tx, commit).await.unwrap();
        })
        .await;
        assert_writable(&fixture, "commit").await;
        // The effect, the outgoing message and the parked row are there together or not at all.
        let effects = fixture.number("select count(*) from effect").await;
        assert_eq!(effects, fixture.number("select count(*) from oncebox_outbox where sink = 'sweep'").await);
        assert_eq!(
            effects,
            fixture.number("select count(*) from oncebox_delivery where handler = 'g'").await
        );
        if finished {
            break;
        }
    }
    sweep!(fixture, "lease", store.lease(&ask));
    sweep!(fixture, "settle", async {
        let leased = store.lease(&ask).await.unwrap();
        let settlements: Vec<_> = leased
            .deliveries
            .iter()
            .zip([Outcome::Done, Outcome::Dead("x".into()), Outcome::Retry(SECOND, "y".into())])
            .map(|(leased, outcome)| Settlement { lease: leased.lease, outcome })
            .collect();
        let leases: Vec<_> = leased.deliveries.iter().map(|leased| leased.lease).collect();
        store.renew("h", &leases, SECOND).await.unwrap();
        store.begin_leased("h", &leases, LIMITS).await.unwrap();
        store.settle("h", &settlements).await.unwrap();
    });
    sweep!(fixture, "relay", async {
        let outgoing = store.lease_outgoing(&outgoing).await.unwrap();
        let sent: Vec<_> = outgoing
            .iter()
            .zip([
                SendOutcome::Confirmed,
                SendOutcome::Dead("x".into()),
                SendOutcome::Retry(SECOND, "y".into()),
            ])
            .map(|(one, outcome)| Sent { seq: one.seq, outcome })
            .collect();
        store.settle_outgoing("", Token(3), &sent, true).await.unwrap();
        store.replay_outgoing("").await.unwrap();
    });
    sweep!(fixture, "operation", async {
        let all = oncebox_core::admin::DeliveryFilter::all();
        store.set_paused("h", false).await.unwrap();
        store.replay(&all).await.unwrap();
        store.discard(&all, "x").await.unwrap();
        store.deliveries(&all).await.unwrap();
        store.handlers().await.unwrap();
        store.outbox().await.unwrap();
        store.add_counts(&counts).await.unwrap();
        store.purge(&Retention::default()).await.unwrap();
        store.forget("nobody").await.unwrap();
    });
}

#[test]
fn a_transaction_dropped_without_a_runtime_frees_the_write_lock() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let fixture = runtime.block_on(fixture());
    let tx = runtime.block_on(fixture.store.begin_plain(LIMITS)).unwrap();
    drop(tx);
    runtime.block_on(assert_writable(&fixture, "no runtime"));
}
