//! AMQP 1.0 with its own client.
//!
//! AMQP 1.0 has no words for making and removing queues. RabbitMQ has, in AMQP 0.9.1 on the same port, so it is the
//! server that can be measured.

use std::time::{Duration, Instant};

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::delivery::Delivery;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use fe2o3_amqp_types::definitions::ReceiverSettleMode;
use fe2o3_amqp_types::messaging::{
    Body, Data, Header, Message as AmqpMessage, MessageId, Outcome, Properties,
};
use fe2o3_amqp_types::primitives::{Binary, Value};
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, ConnectionProperties};
use oncebox::Message;
use oncebox_amqp1::{Amqp1Sink, Amqp1SinkConfig, Amqp1Source, Amqp1SourceConfig};
use tokio::sync::Mutex;

use crate::bench::brokers::broker::{Broker, place_in};
use crate::bench::measure::text;

/// The most that the source hands over and settles at once.
const AT_ONCE: usize = 1000;
/// How long the next message may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long saying goodbye may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct Amqp1 {
    /// As the clients want it: `amqp://…`.
    url: String,
    /// To the queue that was published to last.
    link: Mutex<Option<Link>>,
    channel: Channel,
    /// Ends when it is dropped.
    _queues: lapin::Connection,
}

/// A sender with its connection.
struct Link {
    queue: String,
    sender: Sender,
    opened: Opened,
}

struct Opened {
    session: SessionHandle<()>,
    connection: ConnectionHandle<()>,
}

impl Broker for Amqp1 {
    const NAME: &'static str = "amqp1";

    type Source = Amqp1Source;
    type Sink = Amqp1Sink;

    async fn open(url: &str) -> Result<Self, String> {
        let failed = |error: String| format!("AMQP server cannot be reached at {}: {error}", place_in(url));
        let url = format!("amqp://{}", url.split_once("://").map_or(url, |(_, rest)| rest));
        let queues = lapin::Connection::connect(&url, ConnectionProperties::default()).await;
        let queues = queues.map_err(|error| failed(text(error)))?;
        let channel = queues.create_channel().await.map_err(|error| failed(text(error)))?;
        // A server without AMQP 1.0 says so here.
        Opened::new(&url).await.map_err(failed)?.close().await;
        Ok(Self { url, link: Mutex::new(None), channel, _queues: queues })
    }

    async fn create(&self, queue: &str) -> Result<(), String> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.into(), options, FieldTable::default()).await.map_err(text)?;
        Ok(())
    }

    async fn remove(&self, queue: &str) -> Result<(), String> {
        if let Some(link) = self.link.lock().await.take() {
            link.opened.close().await;
        }
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.map_err(text)?;
        Ok(())
    }

    async fn publish(&self, queue: &str, batch: &[Message]) -> Result<(), String> {
        let mut turn = self.link.lock().await;
        let mut link = match turn.take() {
            Some(link) if link.queue == queue => link,
            _ => Link::to(&self.url, queue).await?,
        };
        let mut outcomes = Vec::with_capacity(batch.len());
        for message in batch {
            let sent = within(link.sender.send_batchable(written(message))).await?;
            outcomes.push(sent.map_err(text)?);
        }
        for outcome in within(try_join_all(outcomes)).await?.map_err(text)? {
            match outcome {
                Outcome::Accepted(_) => {}
                other => return Err(format!("the server did not take a message: {other:?}")),
            }
        }
        *turn = Some(link);
        Ok(())
    }

    async fn consume(&self, queue: &str, count: usize) -> Result<Duration, String> {
        let prefetch = Amqp1SourceConfig::default().prefetch;
        let mut opened = Opened::new(&self.url).await?;
        let attaching = Receiver::builder()
            .name(format!("{queue}_client"))
            .source(address_of(queue))
            .receiver_settle_mode(ReceiverSettleMode::First)
            .credit_mode(CreditMode::Manual)
            .auto_accept(false)
            .attach(&mut opened.session);
        let mut receiver = within(attaching).await?.map_err(text)?;
        receiver.set_credit(prefetch).await.map_err(text)?;
        let (mut first_at, mut taken) = (None, 0);
        while taken < count {
            let first: Delivery<Body<Value>> = within(receiver.recv()).await?.map_err(text)?;
            first_at.get_or_insert_with(Instant::now);
            let mut lot = vec![first.into_parts().0];
            while lot.len() < AT_ONCE {
                let Some(next) = receiver.recv::<Body<Value>>().now_or_never() else { break };
                lot.push(next.map_err(text)?.into_parts().0);
            }
            taken += lot.len();
            receiver.accept_all(lot).await.map_err(text)?;
            if receiver.credit() < prefetch.div_ceil(2) {
                receiver.set_credit(prefetch).await.map_err(text)?;
            }
        }
        let took = first_at.map(|at: Instant| at.elapsed()).unwrap_or_default();
        let _ = within(receiver.close()).await?;
        opened.close().await;
        Ok(took)
    }

    fn source(&self, queue: &str) -> Result<Amqp1Source, String> {
        Amqp1Source::new(queue, Amqp1SourceConfig::new(&self.url, address_of(queue))).map_err(text)
    }

    fn sink(&self, queue: &str) -> Result<Amqp1Sink, String> {
        Amqp1Sink::new(Amqp1SinkConfig::new(&self.url, address_of(queue))).map_err(text)
    }
}

impl Link {
    async fn to(url: &str, queue: &str) -> Result<Self, String> {
        let mut opened = Opened::new(url).await?;
        let attaching = Sender::attach(&mut opened.session, format!("{queue}_client"), address_of(queue));
        let sender = within(attaching).await?.map_err(text)?;
        Ok(Self { queue: queue.to_owned(), sender, opened })
    }
}

impl Opened {
    async fn new(url: &str) -> Result<Self, String> {
        let opening = async {
            let mut connection = Connection::open("oncebox-bench", url).await.map_err(text)?;
            let session = Session::begin(&mut connection).await.map_err(text)?;
            Ok(Self { session, connection })
        };
        within(opening).await?
    }

    /// Says goodbye. RabbitMQ 3 answers strangely, which is nobody's business any more.
    async fn close(mut self) {
        let _ = tokio::time::timeout(LEAVE_WITHIN, async {
            let _ = self.session.end().await;
            let _ = self.connection.close().await;
        })
        .await;
    }
}

/// What RabbitMQ calls a queue that is there.
fn address_of(queue: &str) -> String {
    format!("/amq/queue/{queue}")
}

/// As the sink writes a message.
fn written(message: &Message) -> AmqpMessage<Data> {
    let properties = Properties {
        message_id: Some(MessageId::String(message.id.clone())),
        subject: Some(message.kind.clone()),
        ..Properties::default()
    };
    AmqpMessage {
        header: Some(Header { durable: true, ..Header::default() }),
        delivery_annotations: None,
        message_annotations: None,
        properties: Some(properties),
        application_properties: None,
        body: Data(Binary::from(message.payload.to_vec())),
        footer: None,
    }
}

async fn within<R>(work: impl Future<Output = R>) -> Result<R, String> {
    tokio::time::timeout(PATIENCE, work).await.map_err(|_| format!("the server was silent for {PATIENCE:?}"))
}
