use std::collections::HashSet;
use std::time::Duration;

use oncebox_core::store::{AskOutgoing, Commit, Outgoing, SendOutcome, Sent, Token};
use oncebox_core::{Message, Store, Wake};

use crate::{Fixture, LIMITS, SECOND, fixture, text};

impl Fixture {
    async fn publish(&self, outgoing: Vec<Message>) {
        let tx = self.store.begin_plain(LIMITS).await.unwrap();
        self.store.commit(tx, Commit { outgoing, ..Commit::default() }).await.unwrap();
    }

    async fn outgoing(&self, token: i64, limit: usize) -> Vec<Outgoing> {
        let ask = AskOutgoing { sink: "", token: Token(token), limit, lease_for: 10 * SECOND };
        self.store.lease_outgoing(&ask).await.unwrap()
    }

    async fn sent(&self, token: i64, seq: i64, outcome: SendOutcome) {
        self.store.settle_outgoing("", Token(token), &[Sent { seq, outcome }], false).await.unwrap();
    }
}

fn ids(outgoing: &[Outgoing]) -> Vec<&str> {
    outgoing.iter().map(|one| one.message.id.as_str()).collect()
}

#[tokio::test]
async fn messages_are_sent_in_order_with_their_bytes_and_sink() {
    let fixture = fixture().await;
    let messages: Vec<Message> = (0..300)
        .map(|n| Message::new("k", vec![0, 255, n as u8]).id(n.to_string()).header("h", vec![0xff]))
        .collect();
    fixture.publish(messages.clone()).await;
    fixture.publish(vec![text("x").to("kafka").scope("s")]).await;
    let outgoing = fixture.outgoing(1, 1000).await;
    let read: Vec<Message> = outgoing.iter().map(|one| one.message.clone()).collect();
    assert_eq!(read, messages);
    let ask = AskOutgoing { sink: "kafka", token: Token(1), limit: 10, lease_for: SECOND };
    assert_eq!(
        fixture.store.lease_outgoing(&ask).await.unwrap()[0].message,
        text("x").to("kafka").scope("s")
    );
    let sent: Vec<Sent> =
        outgoing.iter().map(|one| Sent { seq: one.seq, outcome: SendOutcome::Confirmed }).collect();
    fixture.store.settle_outgoing("", Token(1), &sent, true).await.unwrap();
    assert_eq!(fixture.outgoing(2, 10).await.len(), 0);
    let status = fixture.store.outbox().await.unwrap();
    assert_eq!(status.len(), 1);
    assert_eq!(
        (status[0].sink.as_str(), status[0].waiting, status[0].retrying, status[0].dead),
        ("kafka", 1, 0, 0)
    );
}

#[tokio::test]
async fn a_failing_message_holds_back_its_key_and_nothing_else() {
    let fixture = fixture().await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(3600);
    fixture
        .publish(vec![
            text("a1").key("a"),
            text("b1").key("b"),
            text("a2").key("a"),
            text("n"),
            text("c1").key("c").not_before(later),
            text("c2").key("c"),
        ])
        .await;
    let first = fixture.outgoing(1, 10).await;
    assert_eq!(ids(&first), ["a1", "b1", "a2", "n", "c2"]);
    fixture.sent(1, first[0].seq, SendOutcome::Retry(5 * SECOND, "down".into())).await;
    assert_eq!(ids(&fixture.outgoing(1, 10).await), ["b1", "n", "c2"]);
    fixture.clock.advance(6 * SECOND);
    let again = fixture.outgoing(1, 10).await;
    assert_eq!(ids(&again), ["a1", "b1", "a2", "n", "c2"]);
    assert_eq!(again[0].attempts, 1);
    fixture.sent(1, first[0].seq, SendOutcome::Dead("refused".into())).await;
    assert_eq!(ids(&fixture.outgoing(1, 10).await), ["b1", "a2", "n", "c2"]);
    let status = fixture.store.outbox().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.retrying, status.dead), (5, 0, 1));
    assert!(status.lag.unwrap() >= 6 * SECOND);
    assert_eq!(fixture.store.replay_outgoing("other").await.unwrap(), 0);
    assert_eq!(fixture.store.replay_outgoing("").await.unwrap(), 1);
    assert_eq!(ids(&fixture.outgoing(1, 10).await), ["a1", "b1", "a2", "n", "c2"]);
    fixture.clock.advance(3600 * SECOND);
    assert_eq!(fixture.outgoing(1, 10).await.len(), 6);
}

#[tokio::test]
async fn two_relays_never_hold_the_same_lane() {
    let fixture = fixture().await;
    fixture.publish((0..200).map(|n| text(&n.to_string()).key(n % 40)).collect()).await;
    let first = fixture.outgoing(1, 20).await;
    let second = fixture.outgoing(2, 500).await;
    let lanes =
        |outgoing: &[Outgoing]| outgoing.iter().map(|one| one.message.lane()).collect::<HashSet<u16>>();
    assert!(lanes(&first).is_disjoint(&lanes(&second)));
    assert!(!second.is_empty());
    // The same token gets its own lanes again, with what it had not read yet; the other one's lease runs out.
    fixture.clock.advance(9 * SECOND);
    let again = fixture.outgoing(1, 500).await;
    assert_eq!(lanes(&again), lanes(&first));
    fixture.clock.advance(2 * SECOND);
    assert_eq!(lanes(&fixture.outgoing(3, 500).await), lanes(&second));

    // The second one lost its lanes: it may say what was sent, not what was not.
    fixture.sent(2, second[0].seq, SendOutcome::Confirmed).await;
    fixture.sent(2, second[1].seq, SendOutcome::Dead("x".into())).await;
    fixture.sent(2, second[2].seq, SendOutcome::Retry(SECOND, "x".into())).await;
    let status = fixture.store.outbox().await.unwrap().remove(0);
    assert_eq!((status.waiting, status.retrying, status.dead), (199, 0, 0));
    fixture.store.settle_outgoing("", Token(1), &[], true).await.unwrap();
    assert_eq!(lanes(&fixture.outgoing(4, 500).await), lanes(&first));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_hears_commits_of_others() {
    let fixture = fixture().await;
    let other = fixture.other().await;
    let wake = Wake::new();
    let mut listener = wake.listener();
    let listening = tokio::spawn({
        let store = fixture.store.clone();
        async move { store.listen(wake).await }
    });
    // The first look at the database rings once.
    listener.heard().await;
    other.announce().await.unwrap();
    other.receive(&[oncebox_core::store::Arrival::new(text("a"))]).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), listener.heard()).await.unwrap();
    listening.abort();
}
