//! Ids, kinds and keys are bytes, whatever a session makes of texts.

#[allow(dead_code)]
mod support;

use oncebox_core::{Attempt, Failure, Inbox, Message, Once, Received, Store, handler, run};
use oncebox_mariadb::MariaTx;
use oncebox_testkit::{Effect, Subject};
use support::MariaSubject;

/// Pairs that some collation of MariaDB takes for the same text.
const PAIRS: [(&str, &str); 7] = [
    ("order", "order "),
    ("order", "ORDER"),
    ("cafe", "café"),
    ("é", "e\u{301}"),
    ("ß", "ss"),
    ("😀", "😁"),
    ("a\tb", "a b"),
];

/// Also in sessions that talk Latin-1, truncate silently or compare in their own way.
#[tokio::test]
async fn ids_and_keys_that_a_collation_would_merge_are_told_apart() {
    for settings in [
        "",
        "set names latin1; set sql_mode = ''",
        "set sql_mode = 'ANSI,TRADITIONAL,PAD_CHAR_TO_FULL_LENGTH'",
    ] {
        let Some(subject) = MariaSubject::with_settings(settings).await else { return };
        let charge = |mut tx: MariaTx, message: Message| async move {
            let note = message.key.clone().unwrap_or_default();
            MariaSubject::record(&mut tx, Effect { note, ..Effect::of("charge", &message) }).await?;
            Ok::<(), Failure>(())
        };
        let inbox = Inbox::new(subject.store()).on("order", handler("charge", charge).ordered());
        inbox.register().await.unwrap();
        for (number, (one, other)) in PAIRS.into_iter().enumerate() {
            let scope = format!("scope-{number}");
            let message = |id: &str| Message::new("order", "x").id(id).key(id).scope(scope.as_str());
            assert_eq!(
                inbox.receive(&[message(one), message(other), message(one)]).await.unwrap(),
                [Received::New, Received::New, Received::Duplicate],
                "{one:?} {other:?} {settings}"
            );
            let mut tx = subject.begin().await;
            for (id, expected) in [(one, Once::First), (other, Once::First), (one, Once::Again)] {
                let answer = inbox.store().once(&mut tx, &scope, id).await.unwrap();
                assert_eq!(answer, expected, "{one:?} {other:?} {settings}");
            }
            MariaSubject::commit(tx).await;
        }
        run(inbox).drain().await.unwrap();
        let effects = subject.effects().await;
        assert_eq!(effects.len(), 2 * PAIRS.len(), "{settings}");
        assert!(effects.iter().all(|effect| effect.id == effect.note), "{effects:?}");
    }
}

/// Handlers, kinds and dead letters too: a filter for `a` does not match `A`.
#[tokio::test]
async fn kinds_handlers_and_filters_are_compared_byte_by_byte() {
    let Some(subject) = MariaSubject::create().await else { return };
    let refuse = |_: MariaTx, _: Message, Attempt(_): Attempt| async move {
        Err::<(), _>(Failure::permanent("Nicht möglich 😀"))
    };
    let inbox = Inbox::new(subject.store())
        .on("kind", handler("name", refuse))
        .on("KIND", handler("NAME", refuse))
        .on("kind ", handler("Name", refuse));
    inbox.register().await.unwrap();
    for kind in ["kind", "KIND", "kind "] {
        inbox.receive(&[Message::new(kind, "x").id(kind).key(kind)]).await.unwrap();
    }
    run(inbox.clone()).drain().await.unwrap();
    for (kind, name) in [("kind", "name"), ("KIND", "NAME"), ("kind ", "Name")] {
        let mut filter = oncebox_core::admin::DeliveryFilter::dead(name);
        filter.kind = Some(kind.to_owned());
        filter.key = Some(kind.to_owned());
        filter.error = Some("möglich 😀".to_owned());
        let found = inbox.store().deliveries(&filter).await.unwrap();
        assert_eq!(found.len(), 1, "{kind:?}");
        assert_eq!(found[0].message.id, kind);
        filter.error = Some("MÖGLICH".to_owned());
        assert_eq!(inbox.store().deliveries(&filter).await.unwrap().len(), 0);
    }
}
