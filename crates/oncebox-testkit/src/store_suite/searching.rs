//! Finding messages in the log: by every field, page by page, newest first.

use oncebox_core::admin::{AdminStore, HeaderMatch, MessageHit, MessageSearch, PayloadMatch};
use oncebox_core::store::Retention;
use oncebox_core::{DEFAULT_SCOPE, Inbox, Message, Store};

use crate::fixtures::{HOUR, KIND, drain, handler, message, numbered, receive, registered};
use crate::subject::{Subject, recording};

fn search(change: impl FnOnce(&mut MessageSearch)) -> MessageSearch {
    let mut search = MessageSearch::default();
    change(&mut search);
    search
}

/// Page by page to the end.
async fn all<St: AdminStore>(store: &St, mut search: MessageSearch) -> Vec<MessageHit> {
    let mut found = Vec::new();
    loop {
        let page = store.messages(&search).await.unwrap();
        found.extend(page.messages);
        let Some(next) = page.next else { return found };
        assert!(search.before.is_none_or(|before| next < before), "the search goes on downwards");
        search.before = Some(next);
    }
}

fn ids(hits: &[MessageHit]) -> Vec<&str> {
    hits.iter().map(|hit| hit.message.id.as_str()).collect()
}

/// One field after the other, and several at once.
pub async fn messages_are_found_by_every_field<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let odd =
        Message::new("invoice.paid", r#"{"customer":{"id":"c-1"},"cents":250,"gift":true,"note":null}"#)
            .id("odd")
            .scope("shop")
            .key("k-1")
            .header("Tenant", "acme");
    receive(&inbox, &numbered(30)).await;
    subject.clock().advance(HOUR);
    receive(&inbox, std::slice::from_ref(&odd)).await;
    subject.clock().advance(HOUR);
    receive(
        &inbox,
        &[message("last").header("tenant", "other"), Message::new("raw", &b"\xff\0"[..]).id("raw")],
    )
    .await;
    let store = inbox.store();

    let everything = all(store, MessageSearch::default()).await;
    assert_eq!(everything.len(), 33);
    assert!(everything.is_sorted_by(|a, b| a.seq > b.seq && a.received_at >= b.received_at));
    assert_eq!(everything[2].message, odd);
    let came = everything[2].received_at;
    let text = |text: &str| Some(text.to_owned());
    let header = |name: &str, value: Option<&str>| {
        Some(HeaderMatch { name: name.to_owned(), value: value.map(str::to_owned) })
    };
    let payload = |pointer: &str, value: &str| {
        Some(PayloadMatch { pointer: pointer.to_owned(), value: value.to_owned() })
    };
    for only_odd in [
        search(|search| search.scope = text("shop")),
        search(|search| search.id = text("odd")),
        search(|search| (search.scope, search.id) = (text("shop"), text("odd"))),
        search(|search| search.kind = text("invoice.paid")),
        search(|search| search.kind = text("invoice.*")),
        search(|search| search.kind = text("inv*")),
        search(|search| search.key = text("k-1")),
        search(|search| search.header = header("tenant", Some("acme"))),
        search(|search| search.payload = payload("/customer/id", "c-1")),
        search(|search| search.payload = payload("/cents", "250")),
        search(|search| search.payload = payload("/gift", "true")),
        search(|search| search.payload = payload("/note", "null")),
        search(|search| search.payload = payload("/customer", r#"{"id":"c-1"}"#)),
        search(|search| (search.since, search.until) = (Some(came), Some(everything[1].received_at))),
        search(|search| (search.kind, search.header) = (text("*"), header("TENANT", Some("acme")))),
    ] {
        assert_eq!(ids(&all(store, only_odd.clone()).await), ["odd"], "{only_odd:?}");
    }
    for nothing in [
        search(|search| search.scope = text("SHOP")),
        search(|search| search.id = text("odd ")),
        search(|search| (search.scope, search.id) = (text(DEFAULT_SCOPE), text("odd"))),
        search(|search| (search.scope, search.id, search.kind) = (text("shop"), text("odd"), text("raw"))),
        search(|search| {
            (search.scope, search.id, search.before) = (text("shop"), text("odd"), Some(everything[2].seq))
        }),
        search(|search| search.kind = text("invoice")),
        search(|search| search.kind = text("invoice.paid.*")),
        search(|search| search.kind = text("in%*")),
        search(|search| search.kind = text("a\0b")),
        search(|search| search.key = text("k_1")),
        search(|search| search.header = header("tenant", Some("Acme"))),
        search(|search| search.payload = payload("/cents", "\"250\"")),
        search(|search| search.payload = payload("customer", "c-1")),
        search(|search| search.payload = payload("/customer/id", "")),
        search(|search| search.since = Some(everything[0].received_at + HOUR)),
        search(|search| search.until = Some(everything[32].received_at)),
    ] {
        assert_eq!(ids(&all(store, nothing.clone()).await), [""; 0], "{nothing:?}");
    }
    assert_eq!(
        ids(&all(store, search(|search| search.header = header("tenant", None))).await),
        ["last", "odd"]
    );
    assert_eq!(all(store, search(|search| search.until = Some(came))).await.len(), 30);
    assert_eq!(all(store, search(|search| search.since = Some(came))).await.len(), 3);
    assert_eq!(all(store, search(|search| search.kind = text("order.*"))).await.len(), 31);
}

/// No message twice and none left out, however small the pages and however many come meanwhile.
pub async fn a_search_finds_every_message_once_while_others_arrive<T: Subject>(subject: T) {
    let inbox = Inbox::new(subject.store());
    let messages = numbered(400);
    for some in messages.chunks(50) {
        receive(&inbox, some).await;
    }
    let mut expected: Vec<&str> = messages.iter().map(|message| message.id.as_str()).collect();
    expected.reverse();
    let mut found = Vec::new();
    let mut page_of_seven = search(|search| search.limit = Some(7));
    let mut pages = 0;
    loop {
        let page = inbox.store().messages(&page_of_seven).await.unwrap();
        assert!(page.messages.len() <= 7);
        receive(&inbox, &[message(format!("new-{pages}"))]).await;
        pages += 1;
        found.extend(page.messages);
        let Some(next) = page.next else { break };
        page_of_seven.before = Some(next);
    }
    assert!(found.is_sorted_by(|a, b| a.seq > b.seq));
    // Messages of one call have their numbers in the store's own order.
    let mut found = ids(&found);
    found.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(found, expected);
    assert_eq!(all(inbox.store(), MessageSearch::default()).await.len(), 400 + pages);
}

/// The log may have long gaps, and be empty.
pub async fn a_search_passes_over_what_was_purged<T: Subject>(subject: T) {
    assert_eq!(all(&subject.store(), MessageSearch::default()).await.len(), 0);
    let inbox =
        registered(Inbox::new(subject.store()).on(KIND, handler("charge", recording::<T>("charge")))).await;
    receive(&inbox, &numbered(300)).await;
    drain(&inbox).await;
    subject.clock().advance(HOUR);
    inbox.store().set_paused("charge", true).await.unwrap();
    receive(&inbox, &[message("kept")]).await;
    inbox.process(message("inline")).await.unwrap();
    let short_payload = Retention { keep: 9 * HOUR, payload: HOUR / 2, step: 1000 };
    while inbox.store().purge(&short_payload).await.unwrap().more {}
    assert_eq!(ids(&all(inbox.store(), MessageSearch::default()).await), ["kept"]);
    let by_id = search(|search| {
        (search.scope, search.id) = (Some(DEFAULT_SCOPE.to_owned()), Some("m-000".to_owned()));
    });
    assert_eq!(all(inbox.store(), by_id).await.len(), 0, "only its id is left");
}
