//! What only Kafka can get wrong: groups, offsets, refused batches. On the mock cluster, where errors can be made.

// Also in functions that are not marked as tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use oncebox_core::mapping::Delivered;
use oncebox_core::{Error, Incoming, Message, SendFailure, Settle, Sink, Source};
use oncebox_kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaSourceConfig, Receipt, TOMBSTONE_HEADER};
use oncebox_testkit::until;
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Code};
use support::{Mock, Plain};

const TOPIC: &str = "orders";
const GROUP: &str = "shop";
const KIND: &str = "order.placed";
const LIMIT: Duration = Duration::from_secs(60);

fn start(partitions: i32) -> (Mock, Plain) {
    let mock = Mock::start();
    mock.create_topic(TOPIC, partitions);
    let plain = Plain::new(&mock.servers);
    (mock, plain)
}

fn config(mock: &Mock) -> KafkaSourceConfig {
    KafkaSourceConfig::new(&mock.servers, TOPIC)
        .group(GROUP)
        .property("session.timeout.ms", "6000")
        .property("heartbeat.interval.ms", "200")
        .property("fetch.wait.max.ms", "50")
        .property("reconnect.backoff.max.ms", "500")
}

fn source(mock: &Mock) -> KafkaSource {
    KafkaSource::new("orders", config(mock)).unwrap()
}

fn sink(mock: &Mock) -> KafkaSink {
    KafkaSink::new(sink_config(mock)).unwrap()
}

fn sink_config(mock: &Mock) -> KafkaSinkConfig {
    KafkaSinkConfig::new(&mock.servers, TOPIC)
        .property("message.timeout.ms", "5000")
        .property("reconnect.backoff.max.ms", "500")
        .property("topic.metadata.propagation.max.ms", "1000")
}

fn messages(numbers: std::ops::Range<i32>) -> Vec<Message> {
    numbers.map(|number| Message::new(KIND, format!("body {number}")).id(format!("m-{number:03}"))).collect()
}

async fn put(plain: &Plain, partition: i32, messages: &[Message]) {
    let deliveries: Vec<Delivered> =
        messages.iter().map(|message| support::delivery(message, Some(message.id.as_bytes()))).collect();
    plain.put(TOPIC, Some(partition), &deliveries).await;
}

/// The next messages; errors that a source recovers from are passed over.
async fn next(source: &mut KafkaSource) -> Vec<Incoming<Receipt>> {
    let answers = async {
        loop {
            if let Ok(next) = source.next(1000).await {
                return next;
            }
        }
    };
    tokio::time::timeout(LIMIT, answers).await.expect("messages come")
}

/// This many messages.
async fn take(source: &mut KafkaSource, count: usize) -> Vec<Incoming<Receipt>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(next(source).await);
    }
    taken
}

fn ids<R>(incoming: &[Incoming<R>]) -> Vec<&str> {
    incoming.iter().map(|one| one.message.id.as_str()).collect()
}

async fn accept(source: &mut KafkaSource, incoming: Vec<Incoming<Receipt>>) {
    source.settle(incoming.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
}

async fn until_committed(plain: &Plain, partition: usize, partitions: i32, offset: i64) {
    until("the offset is committed", || async {
        let offsets = plain.offsets(GROUP, TOPIC, partitions).unwrap();
        offsets[partition].0 == Some(offset)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_returned_message_comes_again_and_no_commit_passes_it() {
    let (mock, plain) = start(1);
    put(&plain, 0, &messages(0..5)).await;
    let mut source = source(&mock);
    let taken = take(&mut source, 5).await;
    let settled = taken
        .into_iter()
        .enumerate()
        .map(|(place, one)| (one.receipt, if place == 2 { Settle::Return } else { Settle::Accept }));
    source.settle(settled.collect()).await.unwrap();
    until_committed(&plain, 0, 1, 2).await;
    let again = take(&mut source, 3).await;
    assert_eq!(ids(&again), ["m-002", "m-003", "m-004"]);
    assert_eq!(plain.offsets(GROUP, TOPIC, 1).unwrap()[0].0, Some(2));
    accept(&mut source, again).await;
    until_committed(&plain, 0, 1, 5).await;
    put(&plain, 0, &messages(5..6)).await;
    assert_eq!(ids(&take(&mut source, 1).await), ["m-005"], "nothing comes a third time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_returned_in_two_calls_comes_again_from_the_lowest() {
    let (mock, plain) = start(1);
    put(&plain, 0, &messages(0..6)).await;
    let mut source = source(&mock);
    let mut taken = take(&mut source, 6).await;
    let late = taken.split_off(3);
    let give_back =
        |lot: Vec<Incoming<Receipt>>| lot.into_iter().map(|one| (one.receipt, Settle::Return)).collect();
    source.settle(give_back(late)).await.unwrap();
    source.settle(give_back(taken)).await.unwrap();
    let again = take(&mut source, 6).await;
    assert_eq!(ids(&again), ["m-000", "m-001", "m-002", "m-003", "m-004", "m-005"]);
    accept(&mut source, again).await;
    until_committed(&plain, 0, 1, 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_of_an_old_assignment_commit_nothing() {
    let (mock, plain) = start(2);
    for partition in 0..2 {
        put(&plain, partition, &messages(10 * partition..10 * partition + 5)).await;
    }
    let mut one = source(&mock);
    let old = take(&mut one, 10).await;
    // The second member gets one of the two partitions, whose messages come again there.
    let mut two = source(&mock);
    let again = tokio::select! {
        again = take(&mut two, 5) => again,
        more = one.next(1000) => panic!("the first member got more: {more:?}"),
    };
    let moved: BTreeSet<&str> = ids(&again).into_iter().collect();
    assert_eq!(moved.len(), 5);
    let partition = usize::from(moved.contains("m-010"));
    accept(&mut one, old).await;
    until_committed(&plain, 1 - partition, 2, 5).await;
    assert_eq!(
        plain.offsets(GROUP, TOPIC, 2).unwrap()[partition].0,
        None,
        "that one is not its own any more"
    );
    accept(&mut two, again).await;
    until_committed(&plain, partition, 2, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_leaves_commits_what_is_done_first() {
    let (mock, plain) = start(1);
    put(&plain, 0, &messages(0..5)).await;
    let mut source = source(&mock);
    let taken = take(&mut source, 5).await;
    // As the brokers answer while others join and leave.
    mock.fail(Api::OffsetCommit, &[Code::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 3]);
    accept(&mut source, taken).await;
    drop(source);
    until_committed(&plain, 0, 1, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_signs_off_has_committed_what_is_done() {
    let (mock, plain) = start(1);
    put(&plain, 0, &messages(0..5)).await;
    let mut source = source(&mock);
    let taken = take(&mut source, 5).await;
    mock.fail(Api::OffsetCommit, &[Code::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS]);
    accept(&mut source, taken).await;
    source.close().await;
    assert_eq!(plain.offsets(GROUP, TOPIC, 1).unwrap(), [(Some(5), 5)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_thrown_out_joins_again_and_loses_nothing() {
    let (mock, plain) = start(1);
    put(&plain, 0, &messages(0..5)).await;
    let mut source = source(&mock);
    let old = take(&mut source, 5).await;
    mock.fail(Api::Heartbeat, &[Code::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID]);
    let again = take(&mut source, 5).await;
    assert_eq!(ids(&again), ids(&old));
    accept(&mut source, old).await;
    put(&plain, 0, &messages(5..6)).await;
    take(&mut source, 1).await;
    assert_eq!(plain.offsets(GROUP, TOPIC, 1).unwrap()[0].0, None, "receipts from before it was thrown out");
    accept(&mut source, again).await;
    until_committed(&plain, 0, 1, 5).await;
}

/// The broker's answers to commits are prepared one by one: the first one throws the member out while what it has done
/// is not committed, and the second one must still be there for the next who commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_has_lost_its_partitions_does_not_commit_them() {
    let (mock, plain) = start(1);
    put(&plain, 0, &messages(0..5)).await;
    let mut source = source(&mock);
    let old = take(&mut source, 5).await;
    let next_answer = Code::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    mock.fail(Api::OffsetCommit, &[Code::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID, next_answer]);
    accept(&mut source, old).await;
    let again = take(&mut source, 5).await;
    assert_eq!(ids(&again), ["m-000", "m-001", "m-002", "m-003", "m-004"]);
    let of_another = plain.commit("another", TOPIC, 0, 1).map_err(|error| error.rdkafka_error_code());
    assert_eq!(
        of_another,
        Err(Some(next_answer.into())),
        "somebody has committed since the partition was lost"
    );
    assert_eq!(plain.offsets(GROUP, TOPIC, 1).unwrap()[0].0, None);
    accept(&mut source, again).await;
    until_committed(&plain, 0, 1, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_stays_in_its_group_while_nobody_takes_its_messages() {
    let (mock, plain) = start(1);
    put(&plain, 0, &messages(0..100)).await;
    let longest = Duration::from_millis(6000);
    let config =
        config(&mock).prefetch(10, 1 << 20).property("max.poll.interval.ms", longest.as_millis().to_string());
    let mut source = KafkaSource::new("orders", config).unwrap();
    let taken = source.next(5).await.unwrap();
    let count = taken.len();
    // The store is away for longer than Kafka lets a member not poll: the length of time is what is tested.
    tokio::time::sleep(longest + Duration::from_secs(3)).await;
    accept(&mut source, taken).await;
    until_committed(&plain, 0, 1, count as i64).await;
    let rest = take(&mut source, 100 - count).await;
    let expected: Vec<String> = (count..100).map(|number| format!("m-{number:03}")).collect();
    assert_eq!(ids(&rest), expected, "in order, none twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offset_that_is_out_of_range_is_reported() {
    let (mock, plain) = start(1);
    put(&plain, 0, &messages(0..5)).await;
    plain.commit(GROUP, TOPIC, 0, 1000).unwrap();
    let mut source = source(&mock);
    let error: Error = tokio::time::timeout(LIMIT, async {
        loop {
            match source.next(1000).await {
                Err(error) if error.to_string().contains("out of range") => break error,
                Err(_) => {}
                Ok(next) => panic!("it was not reported before {:?}", ids(&next)),
            }
        }
    })
    .await
    .expect("it is reported");
    assert!(error.to_string().contains("retention"), "{error}");
    assert_eq!(take(&mut source, 5).await.len(), 5, "it goes on with what there is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_goes_on_after_errors_of_the_broker() {
    let (mock, plain) = start(1);
    put(&plain, 0, &messages(0..50)).await;
    mock.fail(
        Api::Fetch,
        &[
            Code::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            Code::RD_KAFKA_RESP_ERR__TRANSPORT,
            Code::RD_KAFKA_RESP_ERR_UNKNOWN,
        ],
    );
    mock.fail(Api::JoinGroup, &[Code::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE]);
    let mut source = source(&mock);
    let taken = take(&mut source, 50).await;
    assert!(ids(&taken).is_sorted());
    mock.fail(Api::OffsetCommit, &[Code::RD_KAFKA_RESP_ERR_NOT_COORDINATOR, Code::RD_KAFKA_RESP_ERR_UNKNOWN]);
    accept(&mut source, taken).await;
    until_committed(&plain, 0, 1, 50).await;
    mock.down();
    let error = tokio::time::timeout(LIMIT, source.next(1)).await.expect("it is noticed").unwrap_err();
    assert!(error.to_string().contains("Kafka: "), "{error}");
    assert!(source.lag().await.is_err());
    mock.up();
    put(&plain, 0, &messages(50..51)).await;
    assert_eq!(ids(&take(&mut source, 1).await), ["m-050"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_does_not_exist_is_reported_by_the_source() {
    let (mock, _) = start(1);
    mock.deny_topic("nowhere");
    let config = KafkaSourceConfig::new(&mock.servers, "nowhere").group(GROUP);
    let mut source = KafkaSource::new("orders", config).unwrap();
    let error = tokio::time::timeout(LIMIT, source.next(1)).await.expect("it is reported").unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_pass_make_no_copies() {
    let (mock, plain) = start(1);
    mock.fail(
        Api::Produce,
        &[
            Code::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            Code::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            Code::RD_KAFKA_RESP_ERR__TRANSPORT,
        ],
    );
    let sent = messages(0..200);
    let answers = sink(&mock).send(&sent).await.unwrap();
    assert_eq!(answers, vec![Ok(()); 200]);
    let taken: Vec<String> = plain.taken(TOPIC).into_iter().map(|taken| taken.id).collect();
    assert_eq!(taken, sent.into_iter().map(|sent| sent.id).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_batch_is_sent_one_by_one_and_only_the_guilty_is_blamed() {
    let (mock, plain) = start(1);
    let sink = sink(&mock);
    let too_large = Code::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    mock.fail(Api::Produce, &[too_large]);
    let answers = sink.send(&messages(0..20)).await.unwrap();
    assert_eq!(answers, vec![Ok(()); 20]);
    mock.fail(Api::Produce, &[too_large]);
    let answers = sink.send(&messages(20..21)).await.unwrap();
    let [Err(SendFailure::Permanent(why))] = &answers[..] else { panic!("{answers:?}") };
    assert!(why.contains("too large"), "{why}");
    let taken: BTreeSet<String> = plain.taken(TOPIC).into_iter().map(|taken| taken.id).collect();
    assert_eq!(taken.len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_be_sent_is_refused_for_good_and_its_neighbours_are_sent() {
    let (mock, plain) = start(1);
    let sink = KafkaSink::new(sink_config(&mock).property("message.max.bytes", "10000")).unwrap();
    let lot = [
        Message::new(KIND, "x").id("before"),
        Message::new(KIND, vec![0; 20_000]).id("large"),
        Message::new(KIND, "x").id("strange").header("a\0b", "x"),
        Message::new(KIND, "x").id("after"),
    ];
    let answers = sink.send(&lot).await.unwrap();
    assert_eq!((&answers[0], &answers[3]), (&Ok(()), &Ok(())));
    for (place, word) in [(1, "message.max.bytes"), (2, "NUL")] {
        let Err(SendFailure::Permanent(why)) = &answers[place] else { panic!("{answers:?}") };
        assert!(why.contains(word), "{why}");
    }
    assert_eq!(plain.taken(TOPIC).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_does_not_exist_is_nobodys_fault() {
    let (mock, _) = start(1);
    mock.deny_topic("nowhere");
    let mut config = sink_config(&mock);
    config.topic = "nowhere".to_owned();
    let error = KafkaSink::new(config).unwrap().send(&messages(0..3)).await.unwrap_err();
    assert!(error.to_string().contains("topic `nowhere` cannot be written"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_comes_back_with_the_broker() {
    let (mock, plain) = start(1);
    let sink = sink(&mock);
    assert_eq!(sink.send(&messages(0..3)).await.unwrap(), vec![Ok(()); 3]);
    mock.down();
    let error = sink.send(&messages(3..6)).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("no broker"), "{error}");
    mock.up();
    until("it sends again", || async {
        sink.send(&messages(6..9)).await.is_ok_and(|all| all == vec![Ok(()); 3])
    })
    .await;
    assert!(plain.taken(TOPIC).iter().any(|taken| taken.id == "m-008"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_was_refused_for_good_is_replaced() {
    let (mock, plain) = start(1);
    let sink = sink(&mock);
    mock.fail(Api::Produce, &[Code::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH; 1]);
    let _ = sink.send(&messages(0..3)).await;
    until("it sends again", || async {
        sink.send(&messages(0..3)).await.is_ok_and(|all| all == vec![Ok(()); 3])
    })
    .await;
    assert!(plain.taken(TOPIC).len() >= 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tombstones_binary_keys_and_gzip_go_through() {
    let (mock, _) = start(1);
    let sink = KafkaSink::new(sink_config(&mock).property("compression.type", "gzip")).unwrap();
    let sent = [
        Message::new(KIND, "").id("gone").key("k").header(TOMBSTONE_HEADER, "true"),
        Message::new(KIND, "").id("empty"),
        Message::new(KIND, "x").id("binary").key("base64:AAAAAAAAACo="),
        Message::new(KIND, "x".repeat(5000)).id("text").key("base64:hello").header("message-id", "another"),
    ];
    assert_eq!(sink.send(&sent).await.unwrap(), vec![Ok(()); 4]);
    let mut source = source(&mock);
    let taken: Vec<Message> = take(&mut source, 4).await.into_iter().map(|one| one.message).collect();
    assert_eq!(taken, sent);
    let key: Vec<Option<Vec<u8>>> = Plain::new(&mock.servers).keys(TOPIC, 4);
    assert_eq!(key[2], Some(42_i64.to_be_bytes().to_vec()));
}

/// A produce request with one record whose header's name is not text; nobody checks its checksum.
fn record_with_a_strange_header(topic: &str) -> Vec<u8> {
    let short = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
    let long = |length: usize| u32::try_from(length).unwrap().to_be_bytes();
    // Attributes, time, offset; no key; a payload of 7 bytes; one header with a name of 2 bytes and a value of 1.
    let record = [&b"\0\0\0\x01\x0estrange\x02\x04"[..], b"\xff\xfe", b"\x02v"].concat();
    let length = u8::try_from(2 * record.len()).unwrap();
    let after_length = [
        // Epoch of the leader, format 2, checksum, attributes, offset of the last record.
        &[0; 4][..],
        &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        // First and last time; no producer.
        &[0; 16],
        &[0xff; 14],
        &long(1),
        &[length],
        &record,
    ]
    .concat();
    let batch = [&[0; 8][..], &long(after_length.len()), &after_length].concat();
    let request = [
        // Produce, version 3, number 1; no client name, no transaction; all replicas, 5 s.
        &[0, 0, 0, 3, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x13, 0x88][..],
        &long(1),
        &short(topic.len()),
        topic.as_bytes(),
        &long(1),
        &long(0),
        &long(batch.len()),
        &batch,
    ]
    .concat();
    [&long(request.len())[..], &request].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_whose_header_has_no_text_as_its_name_is_unreadable_and_stops_nothing() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (mock, plain) = start(1);
    let mut source = source(&mock);
    let mut connection = tokio::net::TcpStream::connect(&mock.servers).await.unwrap();
    for _ in 0..2 {
        connection.write_all(&record_with_a_strange_header(TOPIC)).await.unwrap();
        let length = connection.read_u32().await.unwrap();
        connection.read_exact(&mut vec![0; length as usize]).await.unwrap();
    }
    put(&plain, 0, &messages(0..1)).await;
    let taken = take(&mut source, 3).await;
    assert_eq!(taken[2].message.id, "m-000");
    for strange in &taken[..2] {
        assert!(strange.fault.as_ref().unwrap().contains("not UTF-8"), "{strange:?}");
        assert_eq!(strange.message.payload, "strange");
    }
    assert_ne!(taken[0].message.headers, taken[1].message.headers, "two records are two dead letters");
    accept(&mut source, taken).await;
    until_committed(&plain, 0, 1, 3).await;
}
