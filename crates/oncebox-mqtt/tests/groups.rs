//! A group (a shared subscription) whose members write to one store: members die and come back, and the server
//! restarts.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::Ipv4Addr;
use std::time::Duration;

use oncebox_core::mapping::Delivered;
use oncebox_core::{Counter, Error, Inbox, Message, Store, handler, run};
use oncebox_mqtt::{MqttSource, MqttSourceConfig};
use oncebox_sqlite::SqliteStore;
use oncebox_testkit::{
    Fault, Faulty, How, Plan, Proxy, Side, Subject, Verdict, recording, until, within_deadline,
};
use rumqttc::PublishOptions;
use support::plain::{delivery, leave_session, options};
use support::{Plain, SqliteSubject, fresh_name, quality};
use tokio::task::JoinHandle;
use xtask::mosquitto::PrivateMosquitto;
use xtask::server::StopMode;

/// The port of the shared server; the test is skipped where there is none.
macro_rules! port {
    () => {
        match tokio::task::spawn_blocking(support::server).await.unwrap() {
            Some(server) => server.port(),
            None => return,
        }
    };
}

/// Two members of a group, `0` and `1`, with sessions at the server, and the store they share.
struct Group {
    name: String,
    port: u16,
    qos: u8,
    store: SqliteSubject,
}

impl Group {
    async fn create(port: u16, qos: u8) -> Self {
        let group = Self { name: fresh_name(), port, qos, store: SqliteSubject::create().await.unwrap() };
        // From now on nothing is published before anybody has subscribed.
        for number in 0..2 {
            leave_session(&group.client_id(number), port, &group.filter(), quality(qos)).await;
        }
        group
    }

    fn client_id(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    fn filter(&self) -> String {
        format!("$share/{0}/{0}/orders", self.name)
    }

    fn inbox<St: Store<Connection = <SqliteStore as Store>::Connection>>(&self, store: St) -> Inbox<St> {
        Inbox::new(store).on("order.placed", handler("charge", recording::<SqliteSubject>("charge")))
    }

    /// Starts a member over the shared store.
    async fn member(&self, number: usize) -> Member<SqliteStore> {
        self.member_over(number, self.store.store()).await
    }

    async fn member_over<St>(&self, number: usize, store: St) -> Member<St>
    where
        St: Store<Connection = <SqliteStore as Store>::Connection>,
    {
        let proxy = Proxy::start((Ipv4Addr::LOCALHOST, self.port).into()).await;
        let config = MqttSourceConfig::new(format!("mqtt://{}", proxy.address()), self.client_id(number))
            .topic(self.filter())
            .qos(self.qos)
            .keep_alive(Duration::from_secs(2));
        let inbox = self.inbox(store);
        let source = MqttSource::new("orders", config).unwrap();
        let runner = run(inbox.clone()).consume(source).poll_every(Duration::from_millis(20));
        Member { number, proxy, inbox, running: tokio::spawn(runner.into_future()) }
    }

    async fn put(&self, messages: &[Message]) {
        let topic = format!("{}/orders", self.name);
        let packet = |message: &Message| (topic.clone(), delivery(message, Some(message.id.as_bytes())));
        let packets: Vec<(String, Delivered)> = messages.iter().map(packet).collect();
        let mut publisher = Plain::connect(options(&fresh_name(), self.port));
        assert!(publisher.publish(&packets, &PublishOptions::new(quality(self.qos))).await);
    }

    async fn count(&self) -> usize {
        self.store.effects().await.len()
    }

    /// Returns when there are as many effects as messages; none is missing and none is there twice.
    async fn assert_once(&self, messages: &[Message]) {
        until("every effect is there", || async { self.count().await >= messages.len() }).await;
        let ids = messages.iter().map(|message| message.id.as_str());
        Verdict::of(&self.store.effects().await, ids, &["charge"]).assert_clean();
    }
}

/// A process of the group.
struct Member<St: Store> {
    number: usize,
    proxy: Proxy,
    inbox: Inbox<St>,
    running: JoinHandle<Result<(), Error>>,
}

impl<St: Store> Member<St> {
    /// Dies in the middle of whatever it does, and says no goodbye to the server.
    async fn die(mut self) {
        self.proxy.refuse();
        self.running.abort();
        assert!((&mut self.running).await.unwrap_err().is_cancelled());
    }

    fn is_well(&self) -> bool {
        self.inbox.sources().first().is_some_and(|status| status.connected && status.error.is_none())
    }

    /// How many messages it was the first to store.
    fn received(&self) -> i64 {
        self.inbox.counters().get("", Counter::Received)
    }
}

impl<St: Store> Drop for Member<St> {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn messages(count: usize) -> Vec<Message> {
    let message = |number| Message::with_id(format!("m-{number:04}"), "order.placed", "x");
    (0..count).map(message).collect()
}

async fn members_die_under_load(port: u16, qos: u8) {
    let group = Group::create(port, qos).await;
    let mut members = vec![group.member(0).await, group.member(1).await];
    let messages = messages(2400);
    for lot in messages.chunks(400) {
        let before = group.count().await;
        let (early, late) = lot.split_at(300);
        // In turn: the one that has run for longer.
        let dying = members.remove(0);
        let number = dying.number;
        let death = async {
            until("some have come", || async { group.count().await > before }).await;
            dying.die().await;
        };
        tokio::join!(group.put(early), death);
        group.put(late).await;
        members.push(group.member(number).await);
    }
    group.assert_once(&messages).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_die_lose_and_double_nothing() {
    let port = port!();
    within_deadline(members_die_under_load(port, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_die_lose_and_double_nothing_with_qos_2() {
    let port = port!();
    within_deadline(members_die_under_load(port, 2)).await;
}

/// The server keeps for a member that is dead what it had not acknowledged, and its share of what comes meanwhile.
async fn share_waits(port: u16, qos: u8) {
    let group = Group::create(port, qos).await;
    let plan = Plan::with(Fault { method: "receive", call: 1, side: Side::Before, how: How::Hang });
    let dying = group.member_over(0, Faulty::new(group.store.store(), plan.clone())).await;
    let other = group.member(1).await;
    let messages = messages(100);
    group.put(&messages[..50]).await;
    // It has messages in hand, and none of them is committed.
    plan.struck().await;
    dying.die().await;
    group.put(&messages[50..]).await;
    until("the other one goes on", || async { other.received() > 0 }).await;
    let back = group.member(0).await;
    group.assert_once(&messages).await;
    assert_eq!((back.received(), other.received()), (50, 50), "each gets what is its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_share_of_a_dead_member_waits_for_it() {
    let port = port!();
    within_deadline(share_waits(port, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_share_of_a_dead_member_waits_for_it_with_qos_2() {
    let port = port!();
    within_deadline(share_waits(port, 2)).await;
}

/// Mosquitto 2.0 keeps the sessions of a group but not who is in it: only subscribing again makes a member of it.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_the_server_the_members_are_members_again() {
    let Some(_) = tokio::task::spawn_blocking(support::server).await.unwrap() else { return };
    let mut server = tokio::task::spawn_blocking(|| PrivateMosquitto::start().unwrap()).await.unwrap();
    within_deadline(async {
        let group = Group::create(server.port(), 1).await;
        let members = [group.member(0).await, group.member(1).await];
        let messages = messages(400);
        group.put(&messages[..200]).await;
        until("some have come", || async { group.count().await > 0 }).await;
        let restarted = tokio::task::spawn_blocking(move || {
            server.restart(StopMode::Fast).unwrap();
            server
        });
        let _server = restarted.await.unwrap();
        for member in &members {
            until("it is connected again", || async { member.proxy.connections() > 1 && member.is_well() })
                .await;
        }
        group.assert_once(&messages[..200]).await;
        let before = members.each_ref().map(Member::received);
        group.put(&messages[200..]).await;
        group.assert_once(&messages).await;
        let shares = [0, 1].map(|number| members[number].received() - before[number]);
        assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    })
    .await;
}
