//! What a message may look like, checked before anything is stored.

use oncebox_core::{ErrorKind, Inbox, LONGEST_HEADERS, LONGEST_KEY, LONGEST_KIND, LONGEST_SCOPE, Message};

use crate::fixtures::{KIND, drain, handler, message, receive, registered};
use crate::ledger::Effect;
use crate::subject::{Subject, TxOf, recording};

/// Everything at its limit goes through, byte by byte.
pub async fn a_message_at_every_limit_is_handled<T: Subject>(subject: T) {
    let write = |mut tx: TxOf<T>, message: Message| async move {
        let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        let key = message.key.as_ref().map_or(0, String::len);
        let note = format!("{} {} {key} {headers}", message.scope.len(), message.kind.len());
        T::record(&mut tx, Effect { note, ..Effect::of("write", &message) }).await
    };
    let inbox = registered(Inbox::new(subject.store()).on("*", handler("write", write).ordered())).await;
    let largest = Message::new("k".repeat(LONGEST_KIND), "x")
        .id("é".repeat(256))
        .scope("s".repeat(LONGEST_SCOPE))
        .key("y".repeat(LONGEST_KEY))
        .header("h", vec![0; LONGEST_HEADERS - 9]);
    receive(&inbox, std::slice::from_ref(&largest)).await;
    drain(&inbox).await;
    let effects = subject.effects().await;
    let expected = format!("{LONGEST_SCOPE} {LONGEST_KIND} {LONGEST_KEY} {LONGEST_HEADERS}");
    assert_eq!((effects[0].id.as_str(), effects[0].note.as_str()), (largest.id.as_str(), expected.as_str()));
}

/// One byte more is refused, with the name of the field, and nothing of the call is stored.
pub async fn a_message_over_a_limit_is_refused_with_the_name_of_the_field<T: Subject>(subject: T) {
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    let wrong = [
        (Message::new("", "x"), "kind"),
        (Message::new("k".repeat(LONGEST_KIND + 1), "x"), "kind"),
        (message("a").key(""), "key"),
        (message("a").key("y".repeat(LONGEST_KEY + 1)), "key"),
        (message("a").key("y\0"), "key"),
        (message("a").scope("s".repeat(LONGEST_SCOPE + 1)), "scope"),
        (message("a").header("h", vec![0; LONGEST_HEADERS - 8]), "headers"),
    ];
    for (message_over, field) in wrong {
        let error = inbox.receive(&[message("good"), message_over.clone()]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(field), "{error}");
        let error = inbox.process_all(vec![message("good"), message_over]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    drain(&inbox).await;
    assert_eq!(subject.effects().await, []);
    receive(&inbox, &[message("good")]).await;
}
