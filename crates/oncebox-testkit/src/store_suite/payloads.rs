//! Bytes in are bytes out, whatever they are.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use oncebox_core::admin::DeliveryState;
use oncebox_core::clock::Seed;
use oncebox_core::{ErrorKind, Failure, Inbox, Json, Limits, Message, Processed, Store, run};

use crate::broker::{Manners, MemoryBroker};
use crate::fixtures::{
    HOUR, KIND, deliveries, drain, failing, handler, ids, in_state, keyed, message, receive, registered,
};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};

/// Payloads that some text or JSON column would refuse or change.
fn corpus() -> Vec<Bytes> {
    let seed = Seed::fixed(3);
    let random: Vec<u8> = (0..300_000).flat_map(|_| seed.next().to_le_bytes()).collect();
    vec![
        Bytes::new(),
        Bytes::from_static(b"\0"),
        Bytes::from_static(b"a\0b"),
        Bytes::from_static(b"\xff\xfe\x80"),
        Bytes::from_static(b"\xed\xa0\x80"),
        Bytes::from((0..=255).collect::<Vec<u8>>()),
        Bytes::from_static(b"{\"b\":1,\"a\":2,\"a\":3,\"n\":2e3,\"big\":1e4000}  "),
        Bytes::from_static(b"{\"nul\":\"\\u0000\",\"lone\":\"\\ud800\"}"),
        Bytes::from_static(b"{\"x\":NaN,\"y\":-Infinity}"),
        Bytes::from_static(b"\xef\xbb\xbf{}\r\n"),
        Bytes::from("[".repeat(20_000)),
        Bytes::from(random),
    ]
}

fn of_corpus() -> Vec<Message> {
    let numbered = corpus().into_iter().enumerate();
    numbered.map(|(number, payload)| Message::new(KIND, payload).id(number.to_string())).collect()
}

/// The digest of kind and payload, as text.
fn digest(message: &Message) -> String {
    message.fingerprint().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// NUL, invalid UTF-8, and JSON in a spelling that a database would tidy up.
pub async fn payload_bytes_come_out_as_they_went_in<T: Subject>(subject: T) {
    let write_digest = |mut tx: TxOf<T>, message: Message| async move {
        T::record(&mut tx, Effect { note: digest(&message), ..Effect::of("digest", &message) }).await
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("digest", write_digest))).await;
    receive(&inbox, &of_corpus()).await;
    drain(&inbox).await;

    let effects = subject.effects().await;
    assert_eq!(effects.len(), corpus().len());
    for message in of_corpus() {
        let effect = effects.iter().find(|effect| effect.id == message.id).unwrap();
        assert_eq!(effect.note, digest(&message), "payload {}", message.id);
    }
}

/// The same through a row of its own.
pub async fn dead_letters_and_conflicts_keep_their_bytes<T: Subject>(subject: T) {
    let refuse = |_: TxOf<T>| async { Err::<(), _>(Failure::permanent("no")) };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("refuse", refuse))).await;
    receive(&inbox, &of_corpus()).await;
    drain(&inbox).await;

    let dead = deliveries(inbox.store(), "refuse").await;
    for message in of_corpus() {
        let info = dead.iter().find(|info| info.message.id == message.id).unwrap();
        assert_eq!(info.state, DeliveryState::Dead);
        assert_eq!(info.message.payload, message.payload, "payload {}", message.id);
    }

    receive(&inbox, &[message("c")]).await;
    let other = Message::new(KIND, &b"\0\xff\0"[..]).id("c");
    inbox.receive(std::slice::from_ref(&other)).await.unwrap();
    assert_eq!(inbox.store().conflicts(1).await.unwrap()[0].message.payload, other.payload);
}

/// The same through the outbox.
pub async fn outgoing_bytes_are_sent_as_they_were_published<T: Subject>(subject: T) {
    let forward = |mut tx: TxOf<T>, message: Message| async move {
        tx.publish(Message::new("copied", message.payload).id(message.id)).await.map(drop)
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("forward", forward))).await;
    receive(&inbox, &of_corpus()).await;
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(inbox).relay(broker.clone()).drain().await.unwrap();

    let sent = broker.sent();
    assert_eq!(sent.len(), corpus().len());
    for message in of_corpus() {
        let copy = sent.iter().find(|copy| copy.id == message.id).unwrap();
        assert_eq!(copy.payload, message.payload, "payload {}", message.id);
    }
}

/// Names repeat, order counts, values are bytes.
pub async fn headers_come_out_as_they_went_in<T: Subject>(subject: T) {
    let original = message("a")
        .header("Via", "one")
        .header("via", "two")
        .header("empty", "")
        .header("bytes", &b"\0\xff\xfe"[..])
        .header("", "no name")
        .header("quote\"'\\", "ünï\u{0}code");
    let forward = |mut tx: TxOf<T>, message: Message| async move {
        let mut copy = Message::new("copied", "x");
        copy.headers = message.headers.clone();
        tx.publish(copy).await.map(drop)
    };
    let refuse = |_: TxOf<T>| async { Err::<(), _>(Failure::permanent("kept for inspection")) };
    let inbox =
        Inbox::new(subject.store()).on(KIND, handler("forward", forward)).on(KIND, handler("refuse", refuse));
    let inbox = registered(inbox).await;
    receive(&inbox, std::slice::from_ref(&original)).await;
    let broker = MemoryBroker::new(1, Manners::GOOD);
    run(inbox.clone()).relay(broker.clone()).drain().await.unwrap();

    assert_eq!(broker.sent()[0].headers, original.headers);
    assert_eq!(deliveries(inbox.store(), "refuse").await[0].message.headers, original.headers);
}

/// What is not JSON, or too deep to be read, is one dead letter and no loop.
pub async fn a_payload_that_cannot_be_read_is_dead_at_once<T: Subject>(subject: T) {
    let parse = |mut tx: TxOf<T>, Json(_): Json<serde_json::Value>, message: Message| async move {
        T::record(&mut tx, Effect::of("parse", &message)).await
    };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("parse", parse))).await;
    let unreadable = [
        Message::new(KIND, "{\"x\":NaN}").id("nan"),
        Message::new(KIND, "[".repeat(20_000) + &"]".repeat(20_000)).id("deep"),
        Message::new(KIND, &b"\xff"[..]).id("bytes"),
        Message::new(KIND, "").id("empty"),
    ];
    receive(&inbox, &[message("good-1")]).await;
    receive(&inbox, &unreadable).await;
    receive(&inbox, &[message("good-2")]).await;
    drain(&inbox).await;

    let mut seen = ids(&subject, "parse").await;
    seen.sort_unstable();
    assert_eq!(seen, ["good-1", "good-2"]);
    let mut dead = in_state(inbox.store(), "parse", DeliveryState::Dead).await;
    dead.sort_unstable();
    assert_eq!(dead, ["bytes", "deep", "empty", "nan"]);
}

/// Whoever sends it hears of it before anything is stored.
pub async fn a_payload_over_the_limit_is_refused_and_one_at_the_limit_is_not<T: Subject>(subject: T) {
    let count = |mut tx: TxOf<T>, message: Message| async move {
        let note = message.payload.len().to_string();
        T::record(&mut tx, Effect { note, ..Effect::of("count", &message) }).await
    };
    let inbox = Inbox::new(subject.store()).limits(Limits { payload_bytes: 3_000_000 });
    let inbox = registered(inbox.on(KIND, handler("count", count))).await;
    let sized = |id: &str, bytes: usize| Message::new(KIND, vec![7; bytes]).id(id);

    for error in [
        inbox.receive(&[sized("small", 1), sized("large", 3_000_001)]).await.map(drop).unwrap_err(),
        inbox.process(sized("large", 3_000_001)).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("3000000"), "{error}");
    }
    receive(&inbox, &[sized("stored", 3_000_000)]).await;
    assert_eq!(inbox.process(sized("inline", 3_000_000)).await.unwrap(), Processed::Done);
    drain(&inbox).await;

    let effects = subject.effects().await;
    assert_eq!(effects.len(), 2, "nothing of a refused call is stored");
    assert!(effects.iter().all(|effect| effect.note == "3000000"), "{effects:?}");
}

/// Somebody's own SQL wrote it. It stops neither its lane nor its key, and its bytes are there for a person.
pub async fn a_row_that_cannot_be_read_is_a_dead_letter_and_its_lane_goes_on<T: Subject>(subject: T) {
    let fails = |message: &Message, attempt| message.id == "late" && attempt == 1;
    let calls: Arc<Mutex<Vec<String>>> = Arc::default();
    let called = calls.clone();
    let mail = move |message: Message| {
        called.lock().unwrap().push(message.id);
        async { Ok::<(), Failure>(()) }
    };
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", failing::<T>("charge", fails)))
        .on(KIND, handler("ship", recording::<T>("ship")).ordered())
        .on(KIND, handler("mail", mail));
    let inbox = registered(inbox).await;
    let messages: Vec<Message> = ["before", "bad", "after", "late"].map(|id| keyed(id, "one lane")).into();
    // By another process: a store may remember what it has received itself.
    receive(&Inbox::new(subject.reopen().await), &messages).await;
    subject.spoil("bad").await;
    drain(&inbox).await;
    for name in ["charge", "ship", "mail"] {
        let dead = in_state(inbox.store(), name, DeliveryState::Dead).await;
        assert_eq!(dead, ["bad"], "{name}");
    }
    let mut called = calls.lock().unwrap().clone();
    called.sort_unstable();
    assert_eq!(called, ["after", "before", "late"]);
    assert_eq!(ids(&subject, "ship").await, ["before", "after", "late"]);

    // The same for a row that waits for its next attempt.
    subject.spoil("late").await;
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await, ["before", "after"]);
    let dead = deliveries(inbox.store(), "charge").await;
    assert_eq!(dead.len(), 2, "{dead:?}");
    for info in &dead {
        assert_eq!(info.state, DeliveryState::Dead);
        assert_eq!(info.message.payload, message(info.message.id.clone()).payload);
        assert_eq!(info.message.headers.text("oncebox-unreadable-headers"), Some("{oops"));
        let error = &info.history.last().unwrap().error;
        assert!(error.contains("headers `{oops`") && error.contains("not_before"), "{error}");
    }
}
