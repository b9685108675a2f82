//! What the server does with a message of the sink, and what a source tells it about one of its own.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use oncebox_amqp1::{Amqp1Sink, Amqp1SinkConfig};
use oncebox_core::{Message, SendFailure, Settle, Sink, Source};
use oncebox_testkit::{until, within_deadline};
use support::operate::{bind, counts, set_dead_letters, set_policy};
use support::taking::{config, ids, put, settle, source, take};
use support::{fresh_name, plain, server};

fn sink(port: u16, address: &str) -> Amqp1Sink {
    Amqp1Sink::new(Amqp1SinkConfig::new(format!("amqp://guest:guest@127.0.0.1:{port}"), address)).unwrap()
}

/// The kind is the routing key here: of one lot some go to a queue that has room, others to one that has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_a_full_queue_refuses_is_not_sent_and_all_others_of_its_lot_are() {
    let Some(server) = tokio::task::spawn_blocking(server).await.unwrap() else { return };
    within_deadline(async {
        let (port, roomy, full) = (server.port(), fresh_name(), fresh_name());
        for queue in [&roomy, &full] {
            plain::create_queue(port, queue).await;
            bind(server, "amq.direct", queue, queue);
        }
        set_policy(server, &full, r#"{"max-length":1,"overflow":"reject-publish"}"#);
        put(port, &full, &["first"]).await;
        let message = |id: &str, kind: &str| Message::new(kind, "x").id(id);
        let lot = [
            message("1", &roomy).key("a"),
            message("refused", &full).key("b"),
            message("2", &roomy).key("a"),
            message("behind", &roomy).key("b"),
            message("3", &roomy),
        ];
        let sink = sink(port, "/exchange/amq.direct");
        let answers = sink.send(&lot).await.unwrap();
        let words = |at: usize| match &answers[at] {
            Err(SendFailure::Retry(text)) => text.as_str(),
            other => panic!("{other:?} of {answers:?}"),
        };
        // RabbitMQ 3 has no word for it and ends the connection, so the message to blame is found by sending singly.
        assert!(words(1).contains("the connection broke on it"), "{answers:?}");
        assert!(words(3).contains("of its key before it was not sent"), "{answers:?}");
        assert_eq!([&answers[0], &answers[2], &answers[4]], [&Ok(()); 3]);
        assert_eq!(counts(server, &full), (1, 0), "it has the first one only");
        let sent = take(&mut source(config(port, &roomy)), &["1", "2", "3"]).await;
        let mut sent = ids(&sent);
        sent.dedup();
        assert_eq!(sent, ["1", "2", "3"], "the one behind it was not sent");

        // As soon as there is room, it takes them.
        let mut taking = source(config(port, &full));
        let first = take(&mut taking, &["first"]).await;
        settle(&mut taking, first, Settle::Accept).await;
        assert_eq!(sink.send(&lot[1..2]).await.unwrap(), [Ok(())]);
        assert_eq!(ids(&take(&mut taking, &["refused"]).await), ["refused"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rejected_is_a_dead_letter_and_what_is_accepted_or_returned_is_none() {
    let Some(server) = tokio::task::spawn_blocking(server).await.unwrap() else { return };
    within_deadline(async {
        let (port, queue, dead) = (server.port(), fresh_name(), fresh_name());
        plain::create_queue(port, &queue).await;
        plain::create_queue(port, &dead).await;
        set_dead_letters(server, &queue, &dead);
        put(port, &queue, &["accepted", "returned", "rejected"]).await;
        let mut one = source(config(port, &queue));
        let lot = take(&mut one, &["accepted", "returned", "rejected"]).await;
        let how = |id: &str| match id {
            "accepted" => Settle::Accept,
            "returned" => Settle::Return,
            _ => Settle::Reject,
        };
        one.settle(
            lot.into_iter()
                .map(|one| (how(&one.message.id), one))
                .map(|(how, one)| (one.receipt, how))
                .collect(),
        )
        .await
        .unwrap();
        let again = take(&mut one, &["returned"]).await;
        assert_eq!(ids(&again), ["returned"]);
        settle(&mut one, again, Settle::Accept).await;
        until("nothing is left on the queue", || async { counts(server, &queue) == (0, 0) }).await;
        let mut of_dead = source(config(port, &dead));
        assert_eq!(ids(&take(&mut of_dead, &["rejected"]).await), ["rejected"]);
        assert_eq!(counts(server, &dead), (0, 1), "and no other");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_the_prefetch_is_out_and_more_comes_as_it_is_settled() {
    const PREFETCH: u32 = 10;
    let Some(server) = tokio::task::spawn_blocking(server).await.unwrap() else { return };
    within_deadline(async {
        let (port, queue) = (server.port(), fresh_name());
        plain::create_queue(port, &queue).await;
        let all: Vec<String> = (0..30).map(|number| format!("{number:02}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        put(port, &queue, &all).await;
        let mut one = source(config(port, &queue).prefetch(PREFETCH).return_after(Duration::ZERO));
        let mut out = take(&mut one, &all[..10]).await;
        let mut settled = 0;
        // All at once, fewer than half, one, and one at a time: what is settled is let out again, and no more.
        for (count, how) in [
            (0, Settle::Accept),
            (3, Settle::Accept),
            (1, Settle::Reject),
            (1, Settle::Accept),
            (10, Settle::Accept),
        ] {
            let some: Vec<_> = out.drain(..count).collect();
            settle(&mut one, some, how).await;
            settled += count;
            out.extend(take(&mut one, &all[settled + out.len()..settled + 10]).await);
            assert_eq!(ids(&out), all[settled..settled + 10], "in order, and each once");
            let left = all.len() - settled - 10;
            assert_eq!(counts(server, &queue), (left as u64, u64::from(PREFETCH)), "after {settled}");
            let more = tokio::time::timeout(Duration::from_millis(100), one.next(1)).await;
            assert!(more.is_err(), "{more:?}");
        }
    })
    .await;
}
