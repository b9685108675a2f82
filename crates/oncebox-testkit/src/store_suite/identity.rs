//! Which messages are the same: distinct ids never merge, equal ids always do.

use oncebox_core::store::Arrival;
use oncebox_core::{ErrorKind, Inbox, Message, Received, Store};

use crate::fixtures::{KIND, drain, handler, ids, message, receive, registered};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};

/// Two sources may use the same id, and so may two handlers.
pub async fn the_same_id_in_two_scopes_is_two_messages<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store())
        .on(KIND, handler("charge", recording::<T>("charge")))
        .on(KIND, handler("ship", recording::<T>("ship")));
    let inbox = registered(inbox).await;

    receive(&inbox, &[message("7").scope("shop"), message("7").scope("billing")]).await;
    drain(&inbox).await;

    assert_eq!(ids(&subject, "charge").await, ["7", "7"]);
    assert_eq!(ids(&subject, "ship").await, ["7", "7"]);
}

/// The boundary between the two is part of the identity.
pub async fn scope_and_id_do_not_run_together<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    receive(&inbox, &[message("c").scope("ab"), message("bc").scope("a"), message("abc")]).await;
}

/// No case folding, no padding, no Unicode normalization.
pub async fn ids_are_compared_byte_by_byte<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let corpus = [
        "a",
        "A",
        "a ",
        " a",
        "a  ",
        "a\t",
        "a\n",
        "a\r\n",
        "é",
        "e\u{301}",
        "É",
        "ß",
        "ss",
        "SS",
        "ı",
        "i",
        "İ",
        "Å",
        "\u{212b}",
        "ﬁ",
        "fi",
        "\u{200b}a",
        "a\u{200b}",
        "\u{feff}a",
        "😀",
        "\u{1f600}\u{fe0f}",
        "%",
        "_",
        "'",
        "''",
        "\"",
        "\\",
        "\\\\",
        "a;b",
        "a,b",
        "{a}",
        "null",
        "NULL",
        "\u{7f}",
        "\u{1}",
        "Ω",
        "\u{2126}",
    ];
    let messages: Vec<Message> = corpus.iter().map(|id| message(*id)).collect();

    receive(&inbox, &messages).await;
    assert_eq!(inbox.receive(&messages).await.unwrap(), vec![Received::Duplicate; corpus.len()]);
    drain(&inbox).await;

    let mut seen = ids(&subject, "charge").await;
    let mut expected = corpus.to_vec();
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

/// SQLite would keep 1, '1' and x'31' apart or not, as the column is declared.
pub async fn ids_that_look_like_numbers_are_texts<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let corpus =
        ["1", "01", "1.0", "1e0", "+1", "-0", "0", "0x31", "x'31'", "31", "9007199254740993", "1_0", "true"];
    let messages: Vec<Message> = corpus.iter().map(|id| keyed_by_itself(id)).collect();

    receive(&inbox, &messages).await;
    assert_eq!(inbox.receive(&messages).await.unwrap(), vec![Received::Duplicate; corpus.len()]);
    drain(&inbox).await;

    let effects = subject.effects().await;
    assert_eq!(effects.len(), corpus.len());
    for Effect { id, note, .. } in effects {
        assert!(corpus.contains(&id.as_str()) && id == note, "id `{id}`, key `{note}`");
    }
}

fn keyed_by_itself(id: &str) -> Message {
    message(id).key(id)
}

/// A unique index takes no id at all as often as it comes, so there must be one.
pub async fn an_empty_id_is_refused<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    for wrong in ["", "a\0b"] {
        let error = inbox.receive(&[message("good"), message(wrong)]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(inbox.process(message(wrong)).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    receive(&inbox, &[message("good")]).await;
}

/// Bytes that do not compress, so that an index on the text itself would be at its limit.
pub async fn the_longest_ids_and_keys_are_told_apart_by_their_last_byte<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let seed = oncebox_core::clock::Seed::fixed(7);
    let stem: String =
        (0..511).map(|_| char::from(b'!' + u8::try_from(seed.next() % 90).unwrap_or(0))).collect();
    let long = |last: char| message(format!("{stem}{last}")).key(format!("{stem}{last}"));

    receive(&inbox, &[long('x'), long('y')]).await;
    assert_eq!(inbox.receive(&[long('x'), long('y')]).await.unwrap(), [Received::Duplicate; 2]);
    drain(&inbox).await;
    assert_eq!(ids(&subject, "charge").await.len(), 2);

    let error = inbox.receive(&[message(format!("{stem}xx"))]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("512"), "{error}");
}

/// What a database cannot hold is an error or is kept as it is, but never taken for a duplicate.
pub async fn a_row_the_database_cannot_hold_is_never_ignored<T: Subject>(subject: T) {
    let store = subject.store();
    // Past the limits on purpose: a driver of another language may have none.
    let arrival = Arrival::new(message("a\0b").scope("s\0t"));
    match store.receive(std::slice::from_ref(&arrival)).await {
        Ok(answers) => {
            assert_eq!(answers, [Received::New]);
            assert_eq!(store.receive(&[arrival]).await.unwrap(), [Received::Duplicate], "and is remembered");
        }
        Err(_) => {
            assert!(store.receive(&[arrival]).await.is_err(), "a refused row is not remembered as seen");
        }
    }
    receive(&Inbox::new(store), &[message("b")]).await;
}

/// A broker gives a redelivered message another tag, another channel, other headers.
pub async fn only_the_message_id_decides_what_is_a_duplicate<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let delivered = |tag: &'static str| message("a").header("delivery-tag", tag).header("redelivered", tag);

    receive(&inbox, &[delivered("1")]).await;
    assert_eq!(inbox.receive(&[delivered("2")]).await.unwrap(), [Received::Duplicate]);
    receive(&inbox, &[message("b").header("delivery-tag", "1")]).await;
    drain(&inbox).await;

    assert_eq!(ids(&subject, "charge").await.len(), 2);
    assert_eq!(inbox.store().conflicts(10).await.unwrap().len(), 0);
}

/// What a handler sees is the message that was sent.
pub async fn a_handler_sees_scope_id_kind_and_key_as_they_came<T: Subject>(subject: T) {
    let write = |mut tx: TxOf<T>, message: Message| async move {
        let note = format!("{}|{}|{:?}", message.scope, message.kind, message.key);
        T::record(&mut tx, Effect { note, ..Effect::of("charge", &message) }).await
    };
    let inbox = registered(Inbox::new(subject.store()).on("*", handler("charge", write))).await;

    receive(&inbox, &[Message::new("Ünï.kind ", "x").id("a").scope("sco pe").key("k'ey")]).await;
    receive(&inbox, &[Message::new("plain", "x").id("b")]).await;
    drain(&inbox).await;

    let mut notes = crate::fixtures::notes(&subject, "charge").await;
    notes.sort_unstable();
    assert_eq!(notes, ["default|plain|None", "sco pe|Ünï.kind |Some(\"k'ey\")"]);
}
