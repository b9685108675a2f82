//! What a source holds while nobody takes its messages, librdkafka's own queue included.

// Also in functions that are not marked as tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox_core::mapping::Delivered;
use oncebox_core::{Incoming, Message, Settle, Source};
use oncebox_kafka::{KafkaSource, KafkaSourceConfig, Receipt};
use oncebox_testkit::{DEADLINE, within_deadline};
use support::Plain;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TOPIC: &str = "orders";
const PARTITIONS: u32 = 3;
const COUNT: usize = 6000;
const PAYLOAD: usize = 5000;

/// Carries everything to the server and back, and counts what the server sends.
async fn carry(listener: TcpListener, port: u16, sent: Arc<AtomicUsize>) {
    while let Ok((client, _)) = listener.accept().await {
        let sent = sent.clone();
        tokio::spawn(async move {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read) = from_server.read(&mut buffer).await
                && read > 0
            {
                sent.fetch_add(read, Ordering::SeqCst);
                if to_client.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
            }
        });
    }
}

/// Returns what the server has sent when nearly no more has come for a second, a hundred times as long as the client
/// waits before it fetches again.
async fn until_still(sent: &AtomicUsize) -> usize {
    let mut before = 0;
    loop {
        let now = sent.load(Ordering::SeqCst);
        // Answers to heartbeats and commits are small.
        if now > PAYLOAD && now - before < PAYLOAD {
            return now;
        }
        before = now;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The next messages; errors that a source recovers from are passed over.
async fn next(source: &mut KafkaSource, most: usize) -> Vec<Incoming<Receipt>> {
    let answers = async {
        loop {
            if let Ok(next) = source.next(most).await {
                return next;
            }
        }
    };
    tokio::time::timeout(DEADLINE, answers).await.expect("messages come")
}

/// What is ready at once.
async fn ready(source: &mut KafkaSource) -> Vec<Incoming<Receipt>> {
    tokio::time::timeout(Duration::ZERO, source.next(usize::MAX)).await.expect("something is ready").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_holds_no_more_than_its_prefetch_while_nobody_takes_its_messages() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let Some(server) = support::tansu_behind(port) else { return };
    tokio::task::block_in_place(|| server.create_topic(TOPIC, PARTITIONS)).unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    tokio::spawn(carry(listener, server.port(), sent.clone()));
    let servers = format!("127.0.0.1:{port}");
    let deliveries: Vec<Delivered> = (0..COUNT)
        .map(|number| Message::new("k", vec![b'x'; PAYLOAD]).id(format!("m-{number:04}")))
        .map(|message| support::delivery(&message, Some(message.id.as_bytes())))
        .collect();
    Plain::new(&servers).put(TOPIC, None, &deliveries).await;
    // One that the number bounds, one that the bytes bound. Tansu answers with 5 MiB and a message at most, or with as
    // much as it is asked for: what the source may hold, but at least the largest message.
    for (most, most_bytes, answer) in [(100, 16 << 20, 5_500_000), (COUNT, 512 << 10, 1_500_000)] {
        within_deadline(async {
            sent.store(0, Ordering::SeqCst);
            let config = KafkaSourceConfig::new(&servers, TOPIC)
                .group(format!("at most {most}"))
                .prefetch(most, most_bytes);
            let mut source = KafkaSource::new("orders", config).unwrap();
            // The store is away from here on: nobody asks again.
            let mut taken = next(&mut source, 1).await;
            let fetched = until_still(&sent).await;
            let more = ready(&mut source).await;
            assert!(more.len() <= most, "{} were ready", more.len());
            assert!(more.len() * PAYLOAD <= most_bytes + PAYLOAD, "{} were ready", more.len());
            // Ready here, in librdkafka's queue, and the answer that was on its way when that was full.
            let bound = 2 * most_bytes.min(most * (PAYLOAD + 100)) + answer;
            assert!(fetched <= bound, "{fetched} bytes were fetched, at most {bound} may be");
            taken.extend(more);
            // The rest comes when somebody takes it, each message once.
            while taken.len() < COUNT {
                taken.extend(next(&mut source, 1000).await);
            }
            let ids: BTreeSet<&str> = taken.iter().map(|one| one.message.id.as_str()).collect();
            assert_eq!((taken.len(), ids.len()), (COUNT, COUNT));
            source
                .settle(taken.into_iter().map(|one| (one.receipt, Settle::Accept)).collect())
                .await
                .unwrap();
            source.close().await;
        })
        .await;
    }
}
