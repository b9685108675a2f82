//! Looking at one message: what became of it, handler by handler.

use oncebox_core::admin::{
    AdminStore, ConflictAsk, DeliveryFilter, DeliveryState, MessageInfo, MessageSearch, Progress,
};
use oncebox_core::store::Retention;
use oncebox_core::{DEFAULT_SCOPE, Failure, Inbox, Message, Received, Store};

use crate::fixtures::{HOUR, KIND, drain, failing, handler, message, receive, registered};
use crate::subject::{Subject, TxOf, recording};

async fn look<St: AdminStore>(store: &St, id: &str) -> MessageInfo {
    store.message(DEFAULT_SCOPE, id).await.unwrap().unwrap()
}

/// Handler by handler: `waiting`, `done 2` with its failed attempts, or the state of its row with them.
fn progress(info: &MessageInfo) -> Vec<String> {
    let states = info.handlers.iter().map(|state| {
        let progress = match &state.progress {
            Progress::Waiting => "waiting".to_owned(),
            Progress::Done { history } => format!("done {}", history.len()),
            Progress::Delivery(delivery) => {
                assert_eq!(delivery.handler, state.handler);
                format!("{} {}", delivery.state.as_str(), delivery.history.len())
            }
        };
        format!("{}: {progress}", state.handler)
    });
    states.collect()
}

/// Every handler that wants its kind is there, and no other.
pub async fn a_message_is_shown_with_what_each_handler_made_of_it<T: Subject>(subject: T) {
    let dies = |_: TxOf<T>, _: Message| async move { Err::<(), _>(Failure::permanent("no")) };
    let inbox = Inbox::new(subject.store())
        .on("order.*", handler("does", recording::<T>("does")))
        .on(KIND, handler("dies", dies))
        .on(KIND, handler("fails-once", failing::<T>("fails-once", |_, attempt| attempt == 1)))
        .on("page.viewed", handler("other", recording::<T>("other")))
        .on(KIND, handler("rests", recording::<T>("rests")));
    let inbox = registered(inbox).await;
    let store = inbox.store();
    store.set_paused("rests", true).await.unwrap();
    let original = Message::new(KIND, &b"\0\xff"[..]).id("a").scope("shop").key("k").header("tenant", "acme");
    receive(&inbox, &[message("before"), original.clone(), message("after")]).await;
    let all_waiting = ["dies: waiting", "does: waiting", "fails-once: waiting", "rests: waiting"];
    assert_eq!(progress(&store.message("shop", "a").await.unwrap().unwrap()), all_waiting);
    drain(&inbox).await;

    let info = store.message("shop", "a").await.unwrap().unwrap();
    assert_eq!(info.message, Some(original.clone()));
    assert_eq!(progress(&info), ["dies: dead 1", "does: done 0", "fails-once: retrying 1", "rests: waiting"]);
    assert_eq!(info.conflicts.len(), 0);
    let mut other_bytes = original.clone();
    other_bytes.payload = "other".into();
    assert_eq!(inbox.receive(&[other_bytes.clone()]).await.unwrap(), [Received::Conflict]);
    subject.clock().advance(HOUR);
    store.set_paused("rests", false).await.unwrap();
    drain(&inbox).await;
    let later = store.message("shop", "a").await.unwrap().unwrap();
    assert_eq!(progress(&later), ["dies: dead 1", "does: done 0", "fails-once: done 1", "rests: done 0"]);
    assert_eq!(later.received_at, info.received_at);
    assert_eq!(later.conflicts.len(), 1);
    assert_eq!(later.conflicts[0].message, other_bytes);
    assert!(later.conflicts[0].received_at >= info.received_at);
    for (scope, id) in [("shop", "A"), ("shop", "a "), (DEFAULT_SCOPE, "a"), ("shop", ""), ("", "")] {
        assert!(store.message(scope, id).await.unwrap().is_none(), "{scope} {id}");
    }
}

/// Nothing was stored of it but its id, unless an attempt failed: then there is a delivery with all of it.
pub async fn an_inline_message_is_known_by_its_id_or_by_its_delivery<T: Subject>(subject: T) {
    let charge = failing::<T>("charge", |message, attempt| message.id == "bad" && attempt == 1);
    let inbox = registered(
        Inbox::new(subject.store())
            .on(KIND, handler("charge", charge))
            .on(KIND, handler("ship", recording::<T>("ship"))),
    )
    .await;
    inbox.process(message("good")).await.unwrap();
    let good = look(inbox.store(), "good").await;
    assert_eq!((good.message.as_ref(), good.handlers.len(), good.conflicts.len()), (None, 0, 0), "{good:?}");

    inbox.process(message("bad")).await.unwrap();
    let bad = look(inbox.store(), "bad").await;
    assert_eq!(bad.message.as_ref().map(|message| message.id.as_str()), Some("bad"));
    assert_eq!(progress(&bad), ["charge: retrying 1", "ship: done 0"]);
    assert!(bad.received_at >= good.received_at);
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    assert_eq!(progress(&look(inbox.store(), "bad").await), ["charge: done 1"], "its kind is forgotten");
}

/// First the payload goes, then the id.
pub async fn a_purged_message_is_known_by_its_id_alone<T: Subject>(subject: T) {
    let charge = failing::<T>("charge", |_, attempt| attempt == 1);
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", charge))).await;
    receive(&inbox, &[message("a")]).await;
    drain(&inbox).await;
    subject.clock().advance(HOUR);
    drain(&inbox).await;
    let before = look(inbox.store(), "a").await;
    assert_eq!(progress(&before), ["charge: done 1"]);
    let purge = async |retention: Retention| while inbox.store().purge(&retention).await.unwrap().more {};
    purge(Retention { keep: 9 * HOUR, payload: HOUR / 2, step: 1000 }).await;
    let purged = look(inbox.store(), "a").await;
    assert_eq!((purged.message.as_ref(), purged.received_at), (None, before.received_at));
    assert_eq!(progress(&purged), ["charge: done 1"], "who has failed at it is known");
    subject.clock().advance(9 * HOUR);
    purge(Retention { keep: 9 * HOUR, payload: HOUR / 2, step: 1000 }).await;
    assert!(inbox.store().message(DEFAULT_SCOPE, "a").await.unwrap().is_none());
}

/// It was no message; and its memory is apart from that of messages.
pub async fn what_once_remembers_is_no_message<T: Subject>(subject: T) {
    let mut own = subject.begin().await;
    subject.store().once(&mut own, "import", "may.csv").await.unwrap();
    T::commit(own).await;
    assert!(subject.store().message("import", "may.csv").await.unwrap().is_none());
}

/// A dead letter is shown as the list of deliveries shows it.
pub async fn a_dead_letter_is_shown_as_it_is_listed<T: Subject>(subject: T) {
    let dies = |_: TxOf<T>, _: Message| async move { Err::<(), _>(Failure::permanent("no stock")) };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("charge", dies))).await;
    receive(&inbox, &[message("a").key("k")]).await;
    drain(&inbox).await;
    let listed = crate::fixtures::delivery(inbox.store(), "charge").await;
    assert_eq!(listed.state, DeliveryState::Dead);
    match &look(inbox.store(), "a").await.handlers[..] {
        [one] => assert_eq!(format!("{:?}", one.progress), format!("Delivery({listed:?})")),
        other => panic!("{other:?}"),
    }
}

/// Deliveries, conflicts and messages alike: at least one, and pages together have everything once.
pub async fn a_page_ends_once_it_has_its_bytes<T: Subject>(subject: T) {
    let dies = |_: TxOf<T>, _: Message| async move { Err::<(), _>(Failure::permanent("no")) };
    let inbox = registered(Inbox::new(subject.store()).on(KIND, handler("dies", dies))).await;
    let store = inbox.store();
    let large = |number: usize, fill: u8| Message::new(KIND, vec![fill; 1000]).id(format!("m-{number}"));
    let (first, second): (Vec<_>, Vec<_>) =
        (0..7).map(|number| (large(number, b'a'), large(number, b'b'))).unzip();
    receive(&inbox, &first).await;
    drain(&inbox).await;
    assert_eq!(inbox.receive(&second).await.unwrap(), [Received::Conflict; 7]);
    let mut expected: Vec<String> = first.iter().map(|message| message.id.clone()).collect();

    // With 1,000 bytes or less a page has one, with one more it has two.
    for (bytes, each) in [(1, 1), (1000, 1), (1001, 2), (2001, 3), (1 << 20, 7)] {
        let mut filter = DeliveryFilter::all();
        filter.bytes = Some(bytes);
        let mut found: Vec<String> = Vec::new();
        while found.len() < 7 {
            let page = store.deliveries(&filter).await.unwrap();
            assert_eq!(page.len(), each.min(7 - found.len()), "{bytes} bytes");
            filter.after = page.last().map(|last| last.id);
            found.extend(page.into_iter().map(|info| info.message.id));
        }
        found.sort_unstable();
        assert_eq!(found, expected);

        let mut ask = ConflictAsk { bytes: Some(bytes), ..ConflictAsk::default() };
        let mut found: Vec<String> = Vec::new();
        loop {
            let page = store.conflict_page(&ask).await.unwrap();
            assert_eq!(page.conflicts.len(), each.min(7 - found.len()), "{bytes} bytes");
            found.extend(page.conflicts.into_iter().map(|conflict| conflict.message.id));
            if page.next.is_none() {
                break;
            }
            ask.after = page.next;
        }
        found.sort_unstable();
        assert_eq!(found, expected);

        let mut search = MessageSearch::default();
        search.bytes = Some(bytes);
        let mut found: Vec<String> = Vec::new();
        loop {
            let page = store.messages(&search).await.unwrap();
            assert!(page.messages.len() <= each, "{bytes} bytes");
            found.extend(page.messages.into_iter().map(|hit| hit.message.id));
            if page.next.is_none() {
                break;
            }
            search.before = page.next;
        }
        expected.reverse();
        assert_eq!(found, expected, "newest first");
        expected.reverse();
    }
    let limited = ConflictAsk { limit: Some(2), ..ConflictAsk::default() };
    let page = store.conflict_page(&limited).await.unwrap();
    assert!(page.conflicts.len() == 2 && page.next.is_some());
    assert_eq!(look(store, "m-3").await.conflicts.len(), 1);
}
