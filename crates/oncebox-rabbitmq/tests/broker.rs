//! What only RabbitMQ can get wrong.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{ExchangeDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use oncebox_core::{Incoming, Message, SendFailure, Settle, Sink, Source};
use oncebox_rabbitmq::{
    QueueKind, RabbitmqReceipt, RabbitmqSink, RabbitmqSinkConfig, RabbitmqSource, RabbitmqSourceConfig,
    RoutingKey, TlsConfig,
};
use oncebox_testkit::{until, within_deadline};
use support::{Plain, fresh_name, own_server, shared_server};

type Lot = Vec<Incoming<RabbitmqReceipt>>;

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn with_id(id: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(id.into()).with_type("order.placed".into())
}

fn config(url: &str, queue: &str) -> RabbitmqSourceConfig {
    RabbitmqSourceConfig::new(url, queue).return_after(Duration::from_millis(50))
}

async fn put(plain: &Plain, queue: &str, ids: &[&str]) {
    for id in ids {
        plain.publish("", queue, with_id(id), b"body").await.unwrap();
    }
}

fn ids(lot: &Lot) -> Vec<&str> {
    lot.iter().map(|one| one.message.id.as_str()).collect()
}

/// Takes messages until there are this many; errors are for the engine to wait out.
async fn take(source: &mut RabbitmqSource, count: usize) -> Lot {
    let mut lot = Lot::new();
    while lot.len() < count {
        match source.next(count - lot.len()).await {
            Ok(next) => lot.extend(next),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    lot
}

async fn settle(source: &mut RabbitmqSource, lot: Lot, how: Settle) {
    source.settle(lot.into_iter().map(|one| (one.receipt, how)).collect()).await.unwrap();
}

/// Waits until `next` fails and says why.
async fn failure(source: &mut RabbitmqSource) -> String {
    loop {
        if let Err(error) = source.next(10).await {
            return error.to_string();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_not_there_is_named_with_the_remedy_and_created_when_told_to() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let queue = fresh_name("absent");
        let mut source = RabbitmqSource::new("orders", config(&server.url(), &queue)).unwrap();
        let error = failure(&mut source).await;
        assert!(error.contains(&format!("queue `{queue}` is not there; create it")), "{error}");
        for kind in [QueueKind::Quorum, QueueKind::Classic] {
            let queue = fresh_name("created");
            let mut source =
                RabbitmqSource::new("orders", config(&server.url(), &queue).declare(kind)).unwrap();
            assert_eq!(source.lag().await.unwrap(), Some(0));
            let plain = Plain::connect(&server.url()).await.unwrap();
            put(&plain, &queue, &["1"]).await;
            let lot = take(&mut source, 1).await;
            settle(&mut source, lot, Settle::Accept).await;
            // The same settings as one would give by hand.
            let kind = if kind == QueueKind::Quorum { "quorum" } else { "classic" };
            plain.create_queue(&queue, &[("x-queue-type", text(kind))]).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_queue_is_worked_off_and_its_bookkeeping_stays_behind() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let queue = fresh_name("quorum");
        let plain = Plain::connect(&server.url()).await.unwrap();
        plain.create_queue(&queue, &[("x-queue-type", text("quorum"))]).await;
        put(&plain, &queue, &["1", "2", "3"]).await;
        let mut source = RabbitmqSource::new("orders", config(&server.url(), &queue)).unwrap();
        let lot = take(&mut source, 3).await;
        settle(&mut source, lot, Settle::Return).await;
        let again = take(&mut source, 3).await;
        assert_eq!(ids(&again), ["1", "2", "3"]);
        assert!(again.iter().all(|one| one.message.headers.is_empty()), "{again:?}");
        settle(&mut source, again, Settle::Accept).await;
        drop(source);
        until("all are gone", || async { plain.ready(&queue).await == 0 }).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_returned_comes_again_and_what_is_open_is_not_acknowledged_with_the_others() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let queue = fresh_name("returned");
        let plain = Plain::connect(&server.url()).await.unwrap();
        plain.create_queue(&queue, &[]).await;
        put(&plain, &queue, &["1", "2", "3", "4", "5"]).await;
        let mut source = RabbitmqSource::new("orders", config(&server.url(), &queue)).unwrap();
        let mut lot = take(&mut source, 5).await;
        let open = lot.remove(3);
        let settled = lot.into_iter().map(|one| {
            let how = if one.message.id == "2" { Settle::Return } else { Settle::Accept };
            (one.receipt, how)
        });
        source.settle(settled.collect()).await.unwrap();
        let again = take(&mut source, 1).await;
        assert_eq!(ids(&again), ["2"]);
        settle(&mut source, again, Settle::Accept).await;
        // 4 is still open; without it being settled, it comes again on the next connection.
        drop(open);
        drop(source);
        until("it is back in the queue", || async { plain.ready(&queue).await == 1 }).await;
        let mut source = RabbitmqSource::new("orders", config(&server.url(), &queue)).unwrap();
        let last = take(&mut source, 1).await;
        assert_eq!(ids(&last), ["4"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rejected_goes_to_the_dead_letter_exchange_or_is_held() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let plain = Plain::connect(&server.url()).await.unwrap();
        let (queue, dead) = (fresh_name("rejecting"), fresh_name("dead"));
        plain.create_queue(&dead, &[]).await;
        let arguments = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(&dead))];
        plain.create_queue(&queue, &arguments).await;
        put(&plain, &queue, &["1"]).await;
        let mut source =
            RabbitmqSource::new("orders", config(&server.url(), &queue).dead_letter_exchange()).unwrap();
        let lot = take(&mut source, 1).await;
        settle(&mut source, lot, Settle::Reject).await;
        until("it is a dead letter", || async { plain.ready(&dead).await == 1 }).await;

        let queue = fresh_name("holding");
        plain.create_queue(&queue, &[]).await;
        put(&plain, &queue, &["1", "2", "3"]).await;
        let mut source = RabbitmqSource::new("orders", config(&server.url(), &queue).prefetch(2)).unwrap();
        let mut lot = take(&mut source, 2).await;
        let second = lot.split_off(1);
        settle(&mut source, lot, Settle::Reject).await;
        settle(&mut source, second, Settle::Accept).await;
        let third = take(&mut source, 1).await;
        assert_eq!(ids(&third), ["3"], "one that is held does not keep others back");
        settle(&mut source, third, Settle::Reject).await;
        for _ in 0..3 {
            let error = failure(&mut source).await;
            assert!(error.contains("2 messages that the store refuses are held"), "{error}");
        }
        assert_eq!(plain.ready(&queue).await, 0, "they are held on the same connection");
        drop(source);
        until("they are back in the queue", || async { plain.ready(&queue).await == 2 }).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_queue_is_noticed_and_one_that_comes_back_is_read_again() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let queue = fresh_name("removed");
        let plain = Plain::connect(&server.url()).await.unwrap();
        plain.create_queue(&queue, &[]).await;
        put(&plain, &queue, &["1"]).await;
        let mut source = RabbitmqSource::new("orders", config(&server.url(), &queue)).unwrap();
        let first = take(&mut source, 1).await;
        plain.channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
        let error = failure(&mut source).await;
        assert!(error.contains("the queue was removed or moved"), "{error}");
        let error = failure(&mut source).await;
        assert!(error.contains("is not there"), "{error}");
        plain.create_queue(&queue, &[]).await;
        put(&plain, &queue, &["2"]).await;
        let second = take(&mut source, 1).await;
        assert_eq!(ids(&second), ["2"]);
        // A receipt of the old session says nothing about a message of the new one, though their tags are equal.
        settle(&mut source, first, Settle::Accept).await;
        drop(source);
        until("it is back in the queue", || async { plain.ready(&queue).await == 1 }).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_the_server_closes_over_a_late_acknowledgement_is_survived() {
    let Some(server) = own_server("").await else { return };
    within_deadline(async {
        // It looks every minute unless told otherwise, which a settings file cannot do.
        let often = "application:set_env(rabbit, channel_tick_interval, 500), \
                     application:set_env(rabbit, consumer_timeout, 1000).";
        tokio::task::block_in_place(|| server.control(&["eval", often])).unwrap();
        let queue = fresh_name("late");
        let plain = Plain::connect(&server.url()).await.unwrap();
        plain.create_queue(&queue, &[]).await;
        put(&plain, &queue, &["1"]).await;
        let mut source = RabbitmqSource::new("orders", config(&server.url(), &queue)).unwrap();
        let late = take(&mut source, 1).await;
        let error = failure(&mut source).await;
        assert!(error.contains("PRECONDITION"), "{error}");
        settle(&mut source, late, Settle::Accept).await;
        let again = take(&mut source, 1).await;
        assert_eq!(ids(&again), ["1"]);
        settle(&mut source, again, Settle::Accept).await;
        drop(source);
        until("it is gone", || async { plain.ready(&queue).await == 0 }).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_no_queue_takes_is_not_sent() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let (exchange, queue) = (fresh_name("exchange"), fresh_name("bound"));
        let plain = Plain::connect(&server.url()).await.unwrap();
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let topic = lapin::ExchangeKind::Topic;
        plain
            .channel
            .exchange_declare(exchange.as_str().into(), topic, options, FieldTable::default())
            .await
            .unwrap();
        plain.create_queue(&queue, &[]).await;
        plain.bind(&queue, &exchange, "order.*").await;
        let config = RabbitmqSinkConfig::new(server.url()).exchange(&exchange);
        let sink = RabbitmqSink::new(config.clone()).unwrap();
        // The server confirms many with one frame, and the client gives a returned message to any of them.
        let messages: Vec<Message> = (0..300)
            .map(|number| {
                let kind = if number % 7 == 3 { "nobody.listens" } else { "order.placed" };
                Message::new(kind, "body").id(format!("{number}"))
            })
            .collect();
        for _ in 0..5 {
            let answers = sink.send(&messages).await.unwrap();
            for (number, answer) in answers.iter().enumerate() {
                assert_eq!(answer.is_err(), number % 7 == 3, "{number}: {answer:?}");
            }
            let Err(SendFailure::Retry(why)) = &answers[3] else { panic!("{:?}", answers[3]) };
            assert!(why.contains(&format!("no queue is bound to exchange `{exchange}`")), "{why}");
        }
        let taken = messages.iter().filter(|message| message.kind == "order.placed").count();
        assert_eq!(plain.ready(&queue).await as usize, 5 * taken);
        let careless = RabbitmqSink::new(config.not_mandatory()).unwrap();
        let answers = careless.send(&messages).await.unwrap();
        assert!(answers.iter().all(Result::is_ok));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_not_there_is_named_and_blames_no_message() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let sink = RabbitmqSink::new(RabbitmqSinkConfig::new(server.url()).exchange("absent")).unwrap();
        let error = sink.send(&[Message::new("k", "x")]).await.unwrap_err().to_string();
        assert!(error.contains("exchange `absent` is not there; create it"), "{error}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_full_takes_no_more_and_the_sink_says_so() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let queue = fresh_name("full");
        let plain = Plain::connect(&server.url()).await.unwrap();
        let arguments = [("x-max-length", AMQPValue::LongInt(5)), ("x-overflow", text("reject-publish"))];
        plain.create_queue(&queue, &arguments).await;
        let routing_key = RoutingKey::Text(queue.clone());
        let sink = RabbitmqSink::new(RabbitmqSinkConfig::new(server.url()).routing_key(routing_key)).unwrap();
        let messages: Vec<Message> =
            (0..20).map(|number| Message::new("k", "x").id(format!("{number}"))).collect();
        let answers = sink.send(&messages).await.unwrap();
        let confirmed: Vec<String> = messages
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_ok())
            .map(|(message, _)| message.id.clone())
            .collect();
        let mut there = Vec::new();
        while let Some(delivery) = plain.take(&queue).await.unwrap() {
            there.push(delivery.properties.message_id().as_ref().unwrap().as_str().to_owned());
        }
        assert_eq!(there, confirmed);
        assert!(confirmed.len() < 20, "the queue has room for five");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_server_refuses_is_found_among_the_others() {
    let Some(server) = own_server("max_message_size = 1000\n").await else { return };
    within_deadline(async {
        let queue = fresh_name("small");
        let plain = Plain::connect(&server.url()).await.unwrap();
        plain.create_queue(&queue, &[]).await;
        let routing_key = RoutingKey::Text(queue.clone());
        let sink = RabbitmqSink::new(RabbitmqSinkConfig::new(server.url()).routing_key(routing_key)).unwrap();
        let messages: Vec<Message> = (0..12)
            .map(|number| {
                let size = if number % 6 == 2 { 2000 } else { 10 };
                Message::new("k", vec![b'x'; size]).id(format!("{number}"))
            })
            .chain([Message::new("k", "x").id("long name").header("n".repeat(300), "x")])
            .collect();
        let answers = sink.send(&messages).await.unwrap();
        for (message, answer) in messages.iter().zip(&answers) {
            let is_at_fault = message.payload.len() > 1000 || message.id == "long name";
            match answer {
                Ok(()) => assert!(!is_at_fault, "{}", message.id),
                Err(SendFailure::Permanent(_)) => assert!(is_at_fault, "{}: {answer:?}", message.id),
                Err(other) => panic!("{}: {other:?}", message.id),
            }
        }
        assert!(plain.ready(&queue).await >= 10);
        let answers = sink.send(&messages[..2]).await.unwrap();
        assert_eq!(answers, [Ok(()), Ok(())], "it goes on after that");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_routed_by_kind_by_key_or_always_the_same() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let plain = Plain::connect(&server.url()).await.unwrap();
        let message = |kind: &str, key: &str| Message::new(kind, "x").key(key);
        let [by_kind, by_key, fixed] = ["by-kind", "by-key", "fixed"].map(fresh_name);
        for (queue, routing_key) in [
            (&by_kind, RoutingKey::Kind),
            (&by_key, RoutingKey::Key),
            (&fixed, RoutingKey::Text(fixed.clone())),
        ] {
            plain.create_queue(queue, &[]).await;
            let sink =
                RabbitmqSink::new(RabbitmqSinkConfig::new(server.url()).routing_key(routing_key)).unwrap();
            let answers = sink.send(&[message(&by_kind, &by_key)]).await.unwrap();
            assert_eq!(answers, [Ok(())]);
            let delivery = plain.take(queue).await.unwrap().unwrap();
            assert_eq!(*delivery.properties.delivery_mode(), Some(2), "it is persistent");
        }
        let sink = RabbitmqSink::new(RabbitmqSinkConfig::new(server.url()).routing_key(RoutingKey::Key));
        let answers = sink.unwrap().send(&[Message::new("k", "x")]).await.unwrap();
        assert!(
            matches!(&answers[0], Err(SendFailure::Permanent(why)) if why.contains("no key")),
            "{answers:?}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_used_and_strangers_are_not_trusted() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let (url, certificates) = (server.tls_url().unwrap(), server.certificates().unwrap());
        let queue = fresh_name("tls");
        let tls = TlsConfig { ca: Some(certificates.authority.clone()), ..TlsConfig::default() };
        let secure = config(&url, &queue).declare(QueueKind::Classic).tls(tls.clone());
        let mut source = RabbitmqSource::new("orders", secure.clone()).unwrap();
        assert_eq!(source.lag().await.unwrap(), Some(0));
        let sink = RabbitmqSinkConfig::new(&url).routing_key(RoutingKey::Text(queue.clone())).tls(tls);
        let sent = RabbitmqSink::new(sink).unwrap().send(&[Message::new("k", "x").id("1")]).await.unwrap();
        assert_eq!(sent, [Ok(())]);
        assert_eq!(ids(&take(&mut source, 1).await), ["1"]);

        // The system trusts nobody who signed this certificate.
        let mut stranger = RabbitmqSource::new("orders", config(&url, &queue)).unwrap();
        let error = failure(&mut stranger).await;
        assert!(error.contains("certificate") || error.contains("UnknownIssuer"), "{error}");
        let missing = TlsConfig { ca: Some("no-such-file.pem".into()), ..TlsConfig::default() };
        let mut missing = RabbitmqSource::new("orders", config(&url, &queue).tls(missing)).unwrap();
        let error = failure(&mut missing).await;
        assert!(error.contains("cannot read `no-such-file.pem`"), "{error}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_enough_to_log_in() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let certificates = server.certificates().unwrap();
        let (host, queue) = (server.clone(), fresh_name("external"));
        let prepare = move || {
            host.control(&["add_user", "CN=localhost", "not used"]).unwrap();
            host.control(&["set_permissions", "CN=localhost", ".*", ".*", ".*"]).unwrap();
        };
        tokio::task::spawn_blocking(prepare).await.unwrap();
        let tls = TlsConfig {
            ca: Some(certificates.authority.clone()),
            certificate: Some(certificates.certificate.clone()),
            key: Some(certificates.key.clone()),
        };
        let url = server.tls_url().unwrap().replace("guest:guest@", "");
        let external = config(&url, &queue).declare(QueueKind::Classic).tls(tls.clone()).external();
        let mut source = RabbitmqSource::new("orders", external).unwrap();
        assert_eq!(source.lag().await.unwrap(), Some(0));
        let sink = RabbitmqSinkConfig::new(&url).routing_key(RoutingKey::Text(queue)).tls(tls).external();
        let sent = RabbitmqSink::new(sink).unwrap().send(&[Message::new("k", "x").id("1")]).await.unwrap();
        assert_eq!(sent, [Ok(())]);
        let listing = tokio::task::block_in_place(|| server.control(&["list_connections", "user"])).unwrap();
        assert!(listing.contains("CN=localhost"), "{listing}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn user_password_and_virtual_host_are_used_and_errors_do_not_tell_them() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let host = server.clone();
        let prepare = move || {
            for arguments in [
                &["add_vhost", "shop"][..],
                &["add_user", "clerk", "open-sesame"],
                &["set_permissions", "-p", "shop", "clerk", ".*", ".*", ".*"],
            ] {
                host.control(arguments).unwrap();
            }
        };
        tokio::task::spawn_blocking(prepare).await.unwrap();
        let url = format!("amqp://127.0.0.1:{}", server.port());
        let right = config(&url, "till").declare(QueueKind::Classic).vhost("shop");
        let mut source =
            RabbitmqSource::new("orders", right.clone().credentials("clerk", "open-sesame")).unwrap();
        assert_eq!(source.lag().await.unwrap(), Some(0));
        let in_url = format!("amqp://clerk:open-sesame@127.0.0.1:{}/shop", server.port());
        let mut source = RabbitmqSource::new("orders", config(&in_url, "till")).unwrap();
        assert_eq!(source.lag().await.unwrap(), Some(0));
        let sink = |vhost: &str, password: &str| {
            let config = RabbitmqSinkConfig::new(&url).vhost(vhost).credentials("clerk", password);
            RabbitmqSink::new(config.routing_key(RoutingKey::Text("till".to_owned()))).unwrap()
        };
        sink("shop", "open-sesame").check().await.unwrap();
        for (vhost, password, remedy) in [
            ("shop", "open-barley", "check `username` and `password`"),
            ("/", "open-sesame", "check `vhost`"),
        ] {
            let error = sink(vhost, password).check().await.unwrap_err().to_string();
            assert!(error.contains(remedy) && !error.contains("barley"), "{error}");
        }
        let mut wrong = RabbitmqSource::new("orders", right.credentials("clerk", "open-barley")).unwrap();
        let error = failure(&mut wrong).await;
        assert!(error.contains("cannot connect") && !error.contains("barley"), "{error}");
        assert!(!format!("{wrong:?}").contains("barley"));
    })
    .await;
}

/// Puts a message with one byte of payload and these properties, which the plain client cannot write.
fn put_raw(port: u16, exchange: &str, routing_key: &[u8], properties: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"AMQP\0\0\x09\x01").unwrap();
    let frame = |kind: u8, channel: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, channel], &length[..], payload, b"\xce"].concat()
    };
    let short = |text: &[u8]| [&[u8::try_from(text.len()).unwrap()], text].concat();
    let publish = [b"\0\x3c\0\x28\0\0", &short(exchange.as_bytes())[..], &short(routing_key), b"\0"].concat();
    for (wants_answer, bytes) in [
        (true, Vec::new()),
        (true, frame(1, 0, b"\0\x0a\0\x0b\0\0\0\0\x05PLAIN\0\0\0\x0c\0guest\0guest\x05en_US")),
        (false, frame(1, 0, b"\0\x0a\0\x1f\0\x10\0\x01\0\0\0\0")),
        (true, frame(1, 0, b"\0\x0a\0\x28\x01/\0\0")),
        (true, frame(1, 1, b"\0\x14\0\x0a\0")),
        (false, frame(1, 1, &publish)),
        (false, frame(2, 1, &[b"\0\x3c\0\0\0\0\0\0\0\0\0\x01", properties].concat())),
        (false, frame(3, 1, b"x")),
        (true, frame(1, 1, b"\0\x14\0\x28\0\xc8\0\0\0\0\0")),
    ] {
        stream.write_all(&bytes).unwrap();
        if wants_answer {
            let mut head = [0; 7];
            stream.read_exact(&mut head).unwrap();
            let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
            stream.read_exact(&mut vec![0; length as usize + 1]).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_text_where_text_must_be_makes_a_message_unreadable_and_stops_nobody() {
    let Some(server) = shared_server().await else { return };
    within_deadline(async {
        let queue = fresh_name("binary");
        let plain = Plain::connect(&server.url()).await.unwrap();
        plain.create_queue(&queue, &[]).await;
        plain.bind(&queue, "amq.fanout", "any").await;
        // A message id of two bytes; a header with a name of one byte; and one that is fine, but for its routing key.
        let id: &[u8] = b"\0\x80\x02\xff\xfe";
        let header: &[u8] = b"\x20\0\0\0\0\x08\x01\xffS\0\0\0\x01x";
        let fine: &[u8] = b"\0\x80\x04fine";
        tokio::task::block_in_place(|| {
            put_raw(server.port(), "", queue.as_bytes(), id);
            put_raw(server.port(), "", queue.as_bytes(), header);
            put_raw(server.port(), "amq.fanout", b"\xfe", fine);
            put_raw(server.port(), "amq.fanout", "grün".as_bytes(), fine);
        });
        let mut source = RabbitmqSource::new("orders", config(&server.url(), &queue)).unwrap();
        let taken = take(&mut source, 4).await;
        for (one, properties) in taken.iter().zip([id, header, fine]) {
            assert!(one.fault.as_ref().is_some_and(|fault| fault.contains("not UTF-8")), "{one:?}");
            assert_eq!(one.message.headers.get("unreadable-properties").unwrap(), properties);
            assert_eq!(one.message.payload, "x");
        }
        assert_eq!(taken[2].message.headers.get("unreadable-routing-key").unwrap(), &b"\xfe"[..]);
        let last = &taken[3];
        assert_eq!((&last.fault, &last.message.id[..], &last.message.kind[..]), (&None, "fine", "grün"));
        settle(&mut source, taken, Settle::Accept).await;
        drop(source);
        until("the queue is empty and nothing comes back", || async {
            plain.ready(&queue).await == 0 && plain.users(&queue).await == 0
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_and_says_nothing_is_given_up_in_time() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    within_deadline(async {
        let url = format!("amqp://{}", listener.local_addr().unwrap());
        let short = Duration::from_millis(300);
        let mut source = RabbitmqSource::new("orders", config(&url, "q").connect_timeout(short)).unwrap();
        let error = failure(&mut source).await;
        assert!(error.contains("did not answer within 300ms"), "{error}");
        // It has hung up, or its thread would wait for ever.
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut header = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut header).await.unwrap();
        assert_eq!(&header[..4], b"AMQP");
        let sink = RabbitmqSink::new(RabbitmqSinkConfig::new(&url).connect_timeout(short)).unwrap();
        assert!(sink.send(&[Message::new("k", "x")]).await.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_closed_by_an_operator_are_made_again() {
    let Some(server) = own_server("").await else { return };
    within_deadline(async {
        let queue = fresh_name("operator");
        let plain = Plain::connect(&server.url()).await.unwrap();
        plain.create_queue(&queue, &[]).await;
        put(&plain, &queue, &["1"]).await;
        let mut source = RabbitmqSource::new("orders", config(&server.url(), &queue)).unwrap();
        let routing_key = RoutingKey::Text(queue.clone());
        let sink = RabbitmqSink::new(RabbitmqSinkConfig::new(server.url()).routing_key(routing_key)).unwrap();
        assert_eq!(sink.send(&[Message::new("k", "x").id("2")]).await.unwrap(), [Ok(())]);
        let first = take(&mut source, 2).await;
        tokio::task::block_in_place(|| server.close_connections()).unwrap();
        let error = failure(&mut source).await;
        assert!(error.contains(&queue), "{error}");
        settle(&mut source, first, Settle::Accept).await;
        let again = take(&mut source, 2).await;
        assert_eq!(ids(&again), ["1", "2"]);
        settle(&mut source, again, Settle::Accept).await;
        until("it is sent on a new connection", || async {
            matches!(sink.send(&[Message::new("k", "x").id("3")]).await.as_deref(), Ok([Ok(())]))
        })
        .await;
        assert_eq!(take(&mut source, 1).await.len(), 1);
    })
    .await;
}
