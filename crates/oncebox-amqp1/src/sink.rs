//! Messages to a queue, a topic or an exchange.

use fe2o3_amqp::Sender;
use fe2o3_amqp::link::{MessageSizeExceeded, SendError};
use fe2o3_amqp_types::definitions::Error as AmqpErrorInfo;
use fe2o3_amqp_types::messaging::Outcome;
use oncebox_core::{Error, Message, SendFailure, Sink};
use tokio::sync::Mutex;

use crate::config::Amqp1SinkConfig;
use crate::lot::{Answer, Lot};
use crate::receiving::LEAVE_WITHIN;
use crate::server::{Opened, Server};
use crate::values;

/// Sends messages and takes one as sent when the server has accepted it.
///
/// As many messages are on their way at once as the server gives credit for, but never two of one key. When the connection
/// breaks, what has no outcome is sent again, one by one, so that a message which the server does not survive is found. It
/// connects when it is first used, and again after a failure.
#[derive(Debug)]
pub struct Amqp1Sink {
    config: Amqp1SinkConfig,
    server: Server,
    /// Calls take turns. The connection is taken out while it is used: a call that is given up closes it, and the next
    /// one begins anew.
    link: Mutex<Option<Link>>,
}

/// A connection with the link on which messages go out.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) sender: Sender,
    pub(crate) opened: Opened,
}

impl Link {
    pub(crate) fn is_alive(&self) -> bool {
        !self.opened.session.is_ended() && !self.opened.connection.is_closed()
    }
}

impl Amqp1Sink {
    /// A sink with these settings. Fails on settings that cannot work. Connects later.
    pub fn new(config: Amqp1SinkConfig) -> Result<Self, Error> {
        let server = config.check()?;
        Ok(Self { config, server, link: Mutex::new(None) })
    }

    pub(crate) async fn connect(&self) -> Result<Link, Error> {
        let mut opened = self.server.open().await?;
        let name = format!("oncebox-{}", uuid::Uuid::now_v7());
        let attaching = Sender::attach(&mut opened.session, name, self.server.address.as_str());
        let sender = tokio::time::timeout(self.config.connect_timeout, attaching).await;
        let sender = sender.map_err(|_| self.server.error("it did not answer within `connect_timeout`"))?;
        let sender = sender.map_err(|error| self.server.caused("it does not let us send", error))?;
        Ok(Link { sender, opened })
    }

    /// What became of a message; `None` when the connection broke, so that nobody knows.
    pub(crate) fn answer(result: Result<Outcome, SendError>) -> Option<Answer> {
        match result {
            Ok(Outcome::Accepted(_)) => Some(Ok(())),
            Ok(Outcome::Rejected(rejected)) => {
                let why = rejected.error.map_or_else(|| "with no reason given".to_owned(), told);
                Some(Err(SendFailure::Retry(format!("the AMQP server rejected it: {why}"))))
            }
            Ok(Outcome::Released(_)) => Some(Err(SendFailure::Retry(
                "the AMQP server gave it back: it has no room, or no queue takes it".to_owned(),
            ))),
            Ok(Outcome::Modified(_)) => {
                Some(Err(SendFailure::Retry("the AMQP server could not deliver it".to_owned())))
            }
            Err(error) => Self::impossible(&error).map(Err),
        }
    }

    /// Why a message can never be sent, if it is the message's own doing.
    pub(crate) fn impossible(error: &SendError) -> Option<SendFailure> {
        match error {
            SendError::MessageSizeExceeded(MessageSizeExceeded { size, max_size }) => {
                let text = format!("it has {size} bytes, and the AMQP server takes {max_size} at most");
                Some(SendFailure::Permanent(text))
            }
            SendError::MessageEncodeError => {
                Some(SendFailure::Permanent("it cannot be written as an AMQP message".to_owned()))
            }
            _ => None,
        }
    }
}

/// What the server says about an error: its name in AMQP and, where there is one, the description.
fn told(error: AmqpErrorInfo) -> String {
    // As it is written on the way.
    let name = serde_amqp::to_value(&error.condition).ok();
    let name = name.as_ref().and_then(values::bytes).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    match error.description {
        Some(description) => format!("{description} ({name})"),
        None => name.into_owned(),
    }
}

impl Sink for Amqp1Sink {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Answer>, Error> {
        let mut turn = self.link.lock().await;
        let mut link = match turn.take().filter(Link::is_alive) {
            Some(link) => link,
            None => self.connect().await?,
        };
        let mut lot = Lot::new(messages);
        lot.send_together(&mut link).await;
        *turn = if lot.is_answered() { Some(link) } else { lot.send_singly(self).await? };
        Ok(lot.into_answers())
    }

    fn keeps_order(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<Option<String>, Error> {
        let link = self.connect().await?;
        let leaving = async {
            let _ = link.sender.close().await;
            link.opened.close().await;
        };
        let _ = tokio::time::timeout(LEAVE_WITHIN, leaving).await;
        Ok(Some(format!("address `{}`, which takes messages", self.server.address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fe2o3_amqp::link::LinkStateError;
    use fe2o3_amqp_types::definitions::AmqpError;
    use fe2o3_amqp_types::messaging::{Accepted, Modified, Rejected, Released};

    fn modified(undeliverable_here: bool) -> Outcome {
        Outcome::Modified(Modified {
            delivery_failed: Some(true),
            undeliverable_here: Some(undeliverable_here),
            message_annotations: None,
        })
    }

    #[test]
    fn only_what_is_accepted_is_sent_and_the_others_say_what_happened() {
        assert_eq!(Amqp1Sink::answer(Ok(Outcome::Accepted(Accepted {}))), Some(Ok(())));
        let why = AmqpErrorInfo::new(AmqpError::ResourceLimitExceeded, Some("no disk".to_owned()), None);
        for (outcome, words) in [
            (
                Outcome::Rejected(Rejected { error: Some(why) }),
                &["rejected", "no disk", "amqp:resource-limit-exceeded"][..],
            ),
            (Outcome::Rejected(Rejected { error: None }), &["rejected", "no reason given"]),
            (Outcome::Released(Released {}), &["gave it back", "no room", "no queue takes it"]),
            (modified(false), &["could not deliver it"]),
            (modified(true), &["could not deliver it"]),
        ] {
            let Some(Err(SendFailure::Retry(text))) = Amqp1Sink::answer(Ok(outcome)) else {
                panic!("it may be sent later: {words:?}");
            };
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn what_can_never_be_sent_is_told_from_a_connection_that_broke() {
        let large = || SendError::MessageSizeExceeded(MessageSizeExceeded { size: 2048, max_size: 1024 });
        let Some(Err(SendFailure::Permanent(text))) = Amqp1Sink::answer(Err(large())) else {
            panic!("it is the message's own doing");
        };
        assert!(text.contains("2048") && text.contains("1024"), "{text}");
        assert_eq!(Amqp1Sink::impossible(&large()), Some(SendFailure::Permanent(text)));
        let strange = Amqp1Sink::answer(Err(SendError::MessageEncodeError));
        assert!(matches!(strange, Some(Err(SendFailure::Permanent(_)))), "{strange:?}");
        for error in [
            SendError::LinkStateError(LinkStateError::RemoteClosed),
            SendError::NonTerminalDeliveryState,
            SendError::IllegalDeliveryState,
        ] {
            assert_eq!(Amqp1Sink::impossible(&error), None, "{error}");
            assert_eq!(Amqp1Sink::answer(Err(error)), None, "nobody knows what became of it");
        }
    }
}
