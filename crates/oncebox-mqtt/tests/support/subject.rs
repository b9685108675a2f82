//! A session and a topic of their own on Mosquitto.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use oncebox_core::Message;
use oncebox_core::mapping::{Delivered, Mapping};
use oncebox_mqtt::{MqttSink, MqttSinkConfig, MqttSource, MqttSourceConfig};
use oncebox_testkit::broker_suite::{BrokerFacts, BrokerSubject, Restart, SOURCE};
use rumqttc::{PublishOptions, QoS};
use xtask::mosquitto::PrivateMosquitto;
use xtask::server::StopMode;

use super::plain::{Observer, Plain, delivery, leave_session, message_of, options};

const PREFETCH: u16 = 200;
const MARKER: &str = "marker of the tests";

/// A queue is a session with a subscription; the destination is a topic with a subscriber who remembers everything.
/// Source and sink have this QoS, and so have those who publish to the one and subscribe to the other.
pub(crate) struct MosquittoSubject<const QOS: u8 = 1> {
    name: String,
    port: u16,
    observer: Observer,
    own: Mutex<Option<PrivateMosquitto>>,
}

/// The server that the tests of this process share; `None`, with the reason printed, when there is none.
pub(crate) fn server() -> Option<&'static PrivateMosquitto> {
    static SERVER: OnceLock<Option<PrivateMosquitto>> = OnceLock::new();
    SERVER.get_or_init(start).as_ref()
}

fn start() -> Option<PrivateMosquitto> {
    xtask::server::if_installed(PrivateMosquitto::start(), xtask::steps::BROKERS_VARIABLE)
}

/// A name that no other test has.
pub(crate) fn fresh_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::SeqCst))
}

/// The client's word for a QoS of 1 or 2.
pub(crate) fn quality(qos: u8) -> QoS {
    if qos == 1 { QoS::AtLeastOnce } else { QoS::ExactlyOnce }
}

impl<const QOS: u8> MosquittoSubject<QOS> {
    async fn on(port: u16, own: Option<PrivateMosquitto>) -> Self {
        let name = fresh_name();
        leave_session(&name, port, &format!("{name}/queue"), quality(QOS)).await;
        let (observer, topic) = (format!("{name}-observer"), format!("{name}/sent"));
        let observer = Observer::subscribe(&observer, port, &topic, quality(QOS)).await;
        Self { name, port, observer, own: Mutex::new(own) }
    }

    fn sink_on(&self, at: SocketAddr, topic: &str) -> MqttSink {
        let config = MqttSinkConfig::new(format!("mqtt://{at}"))
            .topic(format!("{}/{topic}", self.name))
            .qos(QOS)
            .require_subscribers(QOS == 1)
            .keep_alive(Duration::from_secs(2));
        MqttSink::new(config).unwrap()
    }

    async fn publish(&self, packets: &[(String, Delivered)]) {
        let (mut tries, publisher) = (0, format!("{}-publisher", self.name));
        loop {
            let mut plain = Plain::connect(options(&publisher, self.port));
            if plain.publish(packets, &PublishOptions::new(quality(QOS))).await {
                return;
            }
            tries += 1;
            assert!(tries < 1000, "the server stays away");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl<const QOS: u8> BrokerSubject for MosquittoSubject<QOS> {
    type Source = MqttSource;
    type Sink = MqttSink;

    const FACTS: BrokerFacts = BrokerFacts {
        ordered: true,
        longest_id: 65_535,
        binary_ids: true,
        binary_headers: true,
        repeated_headers: true,
        largest_payload: 1_000_000,
        id_place: "header:message-id",
        cloud_events_prefix: "",
        tells_lag: false,
        finds_places: false,
        // Mosquitto saves what it has once a second at best.
        survives_crash: false,
        proxied: true,
        prefetch: PREFETCH as u64,
    };

    async fn create() -> Option<Self> {
        let port = tokio::task::spawn_blocking(|| server().map(PrivateMosquitto::port)).await.unwrap()?;
        Some(Self::on(port, None).await)
    }

    async fn create_alone() -> Option<Self> {
        let server = tokio::task::spawn_blocking(start).await.unwrap()?;
        Some(Self::on(server.port(), Some(server)).await)
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn source(&self, at: SocketAddr, mapping: Option<Mapping>) -> MqttSource {
        let mut config = MqttSourceConfig::new(format!("mqtt://{at}"), &self.name)
            .topic(format!("{}/queue", self.name))
            .qos(QOS)
            .prefetch(PREFETCH)
            .keep_alive(Duration::from_secs(2));
        if let Some(mapping) = mapping {
            config = config.mapping(mapping);
        }
        MqttSource::new(SOURCE, config).unwrap()
    }

    fn sink(&self, at: SocketAddr) -> MqttSink {
        self.sink_on(at, "sent")
    }

    fn sink_to_queue(&self, at: SocketAddr) -> MqttSink {
        self.sink_on(at, "queue")
    }

    fn sink_to_nowhere(&self, at: SocketAddr) -> Option<MqttSink> {
        // With QoS 2 the server does not tell.
        (QOS == 1).then(|| self.sink_on(at, "nobody/is/here"))
    }

    fn delivery(message: &Message, id: Option<&[u8]>) -> Delivered {
        delivery(message, id)
    }

    async fn put(&self, deliveries: &[Delivered]) {
        let topic = |delivered: &Delivered| match delivered.route.as_str() {
            "" => format!("{}/queue", self.name),
            route => route.to_owned(),
        };
        let packets: Vec<_> = deliveries.iter().map(|one| (topic(one), one.clone())).collect();
        self.publish(&packets).await;
    }

    fn route(&self) -> String {
        format!("{}/queue", self.name)
    }

    async fn taken(&self) -> Vec<Message> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        // When it has come round, so has everything before it.
        let marker = format!("{MARKER} {}", NUMBER.fetch_add(1, Ordering::SeqCst));
        let packet = Delivered { payload: marker.clone().into(), ..Delivered::default() };
        self.publish(&[(format!("{}/sent", self.name), packet)]).await;
        oncebox_testkit::until("the marker has come round", || async {
            self.observer.got().iter().any(|got| got.payload == marker)
        })
        .await;
        let mut got = self.observer.got();
        let end = got.iter().position(|got| got.payload == marker).unwrap();
        got.truncate(end);
        got.retain(|got| !got.payload.starts_with(MARKER.as_bytes()));
        got.iter().map(message_of).collect()
    }

    async fn pending(&self) -> Option<u64> {
        None
    }

    async fn unacknowledged(&self) -> Option<u64> {
        None
    }

    async fn restart(&mut self, how: Restart) {
        let mode = match how {
            Restart::Graceful => StopMode::Fast,
            Restart::Crash => StopMode::Immediate,
        };
        let mut server = self.own.lock().unwrap().take().unwrap();
        let server = tokio::task::spawn_blocking(move || {
            server.restart(mode).unwrap();
            server
        });
        *self.own.lock().unwrap() = Some(server.await.unwrap());
    }
}
