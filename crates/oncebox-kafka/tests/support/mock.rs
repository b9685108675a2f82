//! librdkafka's mock cluster: brokers in this process that speak the real protocol over real sockets.

use std::sync::mpsc;
use std::thread;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

type Cluster = MockCluster<'static, DefaultProducerContext>;
type Command = Box<dyn FnOnce(&Cluster) + Send>;

/// A cluster of one broker that ends with its owner.
pub(crate) struct Mock {
    /// It is not `Send`, so it lives on a thread of its own that does what it is told.
    commands: mpsc::Sender<Command>,
    pub(crate) servers: String,
}

impl Mock {
    pub(crate) fn start() -> Self {
        let (commands, received) = mpsc::channel::<Command>();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let cluster = MockCluster::new(1).unwrap();
            tell.send(cluster.bootstrap_servers()).unwrap();
            for command in received {
                command(&cluster);
            }
        });
        Self { commands, servers: told.recv().unwrap() }
    }

    pub(crate) fn create_topic(&self, topic: &str, partitions: i32) {
        let topic = topic.to_owned();
        self.tell(move |cluster| cluster.create_topic(&topic, partitions, 1).unwrap());
    }

    /// From now on the topic is said not to exist.
    pub(crate) fn deny_topic(&self, topic: &str) {
        let topic = topic.to_owned();
        let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        self.tell(move |cluster| cluster.topic_error(&topic, unknown).unwrap());
    }

    /// Closes every connection and takes no new ones.
    pub(crate) fn down(&self) {
        self.tell(|cluster| cluster.broker_down(-1).unwrap());
    }

    pub(crate) fn up(&self) {
        self.tell(|cluster| cluster.broker_up(-1).unwrap());
    }

    /// The next requests of this kind fail with these errors.
    pub(crate) fn fail(&self, api: RDKafkaApiKey, errors: &[RDKafkaRespErr]) {
        let errors = errors.to_vec();
        self.tell(move |cluster| cluster.request_errors(api, &errors));
    }

    fn tell(&self, command: impl FnOnce(&Cluster) + Send + 'static) {
        let (tell, told) = mpsc::channel();
        let command = move |cluster: &Cluster| {
            command(cluster);
            tell.send(()).unwrap();
        };
        self.commands.send(Box::new(command)).unwrap();
        told.recv().unwrap();
    }
}
