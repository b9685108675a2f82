//! Messages that the client cannot read: kept with all their bytes, rejected, and in nobody's way.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod support;

use oncebox_core::admin::DeliveryFilter;
use oncebox_core::{Inbox, Settle, Store, UNREADABLE, run};
use oncebox_testkit::{Subject, until, within_deadline};
use support::operate::{Section, counts, put_bytes, set_dead_letters};
use support::taking::{config, put, settle, source, take};
use support::{SqliteSubject, fresh_name, plain, server};

/// A body that is a value inside so many others.
fn deep(levels: usize) -> Vec<u8> {
    [&b"\0\x53\x77"[..], &b"\0\x44".repeat(levels), b"\x41"].concat()
}

/// What no client should be given.
fn strange() -> Vec<(Section, Vec<u8>)> {
    let annotations =
        [&b"\0\x53\x72\xd1\0\0\x0f\xa8\0\0\0\x02\xa3\x01x"[..], &b"\0\x44".repeat(2000), b"\x41"];
    vec![
        (Section::Body, b"no AMQP at all".to_vec()),
        (Section::Body, b"\0\x53\x75\xa0\xc8cut off".to_vec()),
        (Section::Body, b"\0\x53\x77\xa1\x01\xff".to_vec()),
        (Section::Body, b"\0\x53\x77\xc0\0\0".to_vec()),
        (Section::Body, deep(2000)),
        (Section::Header("x-amqp-1.0-app-properties"), b"\0\x53\x74\xc0\x02\x01\x41".to_vec()),
        (Section::Header("x-amqp-1.0-message-annotations"), annotations.concat()),
    ]
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_decoded_is_rejected_with_its_bytes_told_and_stops_nobody() {
    let Some(server) = tokio::task::spawn_blocking(server).await.unwrap() else { return };
    within_deadline(async {
        let (port, queue, dead) = (server.port(), fresh_name(), fresh_name());
        plain::create_queue(port, &queue).await;
        plain::create_queue(port, &dead).await;
        set_dead_letters(server, &queue, &dead);
        let strange = strange();
        put(port, &queue, &["before"]).await;
        strange.iter().for_each(|(section, bytes)| put_bytes(server, &queue, *section, bytes));
        put(port, &queue, &["after"]).await;

        let mut one = source(config(port, &queue));
        let lot = take(&mut one, &["before", "after"]).await;
        assert_eq!(lot.len(), strange.len() + 2);
        for (got, (_, bytes)) in lot[1..].iter().zip(&strange) {
            assert!(got.fault.as_ref().unwrap().contains("no AMQP message that can be read"), "{got:?}");
            assert!(holds(&got.message.payload, bytes), "{got:?}");
        }
        // So does the engine when it has kept them.
        settle(&mut one, lot, Settle::Accept).await;
        until("the server has put them aside", || async { counts(server, &dead).0 == strange.len() as u64 })
            .await;
        assert_eq!(counts(server, &queue), (0, 0), "all are settled");
    })
    .await;
}

/// Delivery tags begin anew with each connection, so nothing but its bytes tells one such message from another.
#[tokio::test(flavor = "multi_thread")]
async fn each_message_that_cannot_be_decoded_becomes_a_dead_letter() {
    let Some(server) = tokio::task::spawn_blocking(server).await.unwrap() else { return };
    within_deadline(async {
        let (port, queue) = (server.port(), fresh_name());
        plain::create_queue(port, &queue).await;
        let store = SqliteSubject::create().await.unwrap();
        let all = DeliveryFilter::all().handler(UNREADABLE);
        for (number, (section, bytes)) in strange().into_iter().step_by(3).enumerate() {
            put_bytes(server, &queue, section, &bytes);
            let inbox = Inbox::new(store.store());
            let running = tokio::spawn(run(inbox).consume(source(config(port, &queue))).into_future());
            until("it is kept and settled", || async {
                store.store().deliveries(&all).await.unwrap().len() == number + 1
                    && counts(server, &queue) == (0, 0)
            })
            .await;
            running.abort();
            let _ = running.await;
            let kept = store.store().deliveries(&all).await.unwrap();
            let letter = kept.iter().find(|letter| holds(&letter.message.payload, &bytes)).unwrap();
            assert!(letter.history[0].error.contains("no AMQP message that can be read"), "{letter:?}");
        }
    })
    .await;
}
