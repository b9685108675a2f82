//! Messages on their way into a store.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::message::{Message, fingerprint, identity, lane_of};
use crate::packed::{MessageView, Packed};
use crate::store::LaneMessage;

/// A message on its way into the store, checked against the limits. Copies share its bytes.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// See [`Message::identity`].
    pub identity: [u8; 16],
    /// See [`Message::fingerprint`].
    pub fingerprint: [u8; 16],
    /// See [`Message::lane`].
    pub lane: u16,
    messages: Arc<Packed>,
    index: usize,
}

impl Arrival {
    /// A message on its own.
    pub fn new(message: impl Borrow<Message>) -> Self {
        let packed = Packed::new([message.borrow()].into_iter());
        Self::within(&Arc::new(packed), 0)
    }

    /// Messages that came together, with what the store needs to know of each.
    pub fn all(messages: &[Message]) -> impl ExactSizeIterator<Item = Self> + use<> {
        let packed = Arc::new(Packed::new(messages.iter()));
        (0..packed.len()).map(move |index| Self::within(&packed, index))
    }

    fn within(messages: &Arc<Packed>, index: usize) -> Self {
        let view = messages.view(index);
        Self {
            identity: identity(view.scope, view.id),
            fingerprint: fingerprint(view.kind, view.payload),
            lane: lane_of(view.key.unwrap_or(view.id)),
            messages: messages.clone(),
            index,
        }
    }

    /// The message, which has a scope.
    pub fn message(&self) -> MessageView<'_> {
        self.messages.view(self.index)
    }

    /// How many bytes its texts, headers and payload have.
    pub(crate) fn size(&self) -> usize {
        self.messages.size_of(self.index)
    }

    /// A copy of the message, which has a scope and no sink.
    pub fn to_message(&self) -> Message {
        self.messages.message(self.index)
    }

    /// The message for a handler.
    pub fn to_lane_message(&self) -> LaneMessage {
        LaneMessage::Packed(self.messages.clone(), self.index)
    }

    /// The messages of these, and of none else, in this order; nothing when they are larger than `most`.
    ///
    /// No bytes are copied for arrivals that came together and are still together.
    pub fn packed<'a>(
        arrivals: impl ExactSizeIterator<Item = &'a Self> + Clone,
        most: usize,
    ) -> Option<Arc<Packed>> {
        let mut together = arrivals.clone();
        let whole = together.next().map(|first| &first.messages).filter(|packed| {
            packed.len() == arrivals.len()
                && arrivals
                    .clone()
                    .enumerate()
                    .all(|(index, one)| one.index == index && Arc::ptr_eq(&one.messages, packed))
        });
        match whole {
            Some(packed) => (packed.size() <= most).then(|| packed.clone()),
            None => Packed::gathered(arrivals.map(|one| (&*one.messages, one.index)), most).map(Arc::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_say_of_their_messages_what_the_messages_say() {
        let messages = [
            Message::with_id("1", "k", "body"),
            Message::with_id("2", "k", "other").key("key").scope("shop").header("h", "v"),
        ];
        for (arrival, message) in Arrival::all(&messages).zip(&messages) {
            for arrival in [&arrival, &Arrival::new(message)] {
                assert_eq!(arrival.fingerprint, message.fingerprint());
                assert_eq!(arrival.lane, message.lane());
                assert_eq!(arrival.size(), arrival.to_message().size());
                let scope = if message.scope.is_empty() { "default" } else { &message.scope };
                assert_eq!(arrival.to_message(), message.clone().scope(scope));
                assert_eq!(arrival.identity, arrival.to_message().identity());
                assert_eq!(arrival.to_lane_message().into_message(), arrival.to_message());
            }
        }
    }

    #[test]
    fn what_is_packed_is_theirs_alone_and_shared_where_it_can_be() {
        let messages: Vec<Message> = (0..3).map(|id| Message::with_id(id.to_string(), "k", "body")).collect();
        let together: Vec<Arrival> = Arrival::all(&messages).collect();
        let ids = |packed: &Packed| -> Vec<String> {
            (0..packed.len()).map(|index| packed.view(index).id.to_owned()).collect()
        };
        let whole = Arrival::packed(together.iter(), usize::MAX).unwrap();
        assert!(Arc::ptr_eq(&whole, &together[0].messages));
        assert!(Arrival::packed(together.iter(), whole.size()).is_some());
        assert!(Arrival::packed(together.iter(), whole.size() - 1).is_none());

        assert_eq!(ids(&Arrival::packed(together[..2].iter(), usize::MAX).unwrap()), ["0", "1"]);
        let some = [together[2].clone(), together[0].clone()];
        assert_eq!(ids(&Arrival::packed(some.iter(), usize::MAX).unwrap()), ["2", "0"]);
        let turned = [together[1].clone(), together[0].clone(), together[2].clone()];
        assert_eq!(ids(&Arrival::packed(turned.iter(), usize::MAX).unwrap()), ["1", "0", "2"]);
        let messages: Vec<Message> = (3..6).map(|id| Message::with_id(id.to_string(), "k", "body")).collect();
        let others: Vec<Arrival> = Arrival::all(&messages).collect();
        let mixed = [together[0].clone(), together[1].clone(), others[2].clone()];
        assert_eq!(ids(&Arrival::packed(mixed.iter(), usize::MAX).unwrap()), ["0", "1", "5"]);
        assert!(Arrival::packed([].iter(), usize::MAX).unwrap().is_empty());
    }
}
