//! The messages of one call of the sink, and what became of each.

use std::collections::{HashMap, HashSet, VecDeque};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use oncebox_core::{Error, Message, SendFailure};

use crate::delivery;
use crate::sink::{Amqp1Sink, Link};

pub(crate) type Answer = Result<(), SendFailure>;

/// After this many broken connections in one call the server is taken to be away.
const BREAKS: u32 = 3;

pub(crate) struct Lot<'a> {
    messages: &'a [Message],
    answers: Vec<Option<Answer>>,
}

impl<'a> Lot<'a> {
    pub(crate) fn new(messages: &'a [Message]) -> Self {
        Self { messages, answers: vec![None; messages.len()] }
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.answers.iter().all(Option::is_some)
    }

    pub(crate) fn into_answers(self) -> Vec<Answer> {
        let unknown = || Err(SendFailure::Retry("the AMQP server did not say whether it has it".to_owned()));
        self.answers.into_iter().map(|answer| answer.unwrap_or_else(unknown)).collect()
    }

    /// Sends all, as many at once as the server gives credit for but one of a key, until done or the connection breaks.
    ///
    /// One of a key, because the server may refuse a message when the next one is already on its way.
    pub(crate) async fn send_together(&mut self, link: &mut Link) {
        let mut in_flight = FuturesUnordered::new();
        // For each key with a message on its way, those that wait for it.
        let mut behind: HashMap<&str, VecDeque<usize>> = HashMap::new();
        let mut ready: VecDeque<usize> = (0..self.messages.len()).collect();
        loop {
            while let Some(at) = ready.pop_front() {
                let key = self.key(at);
                if let Some(waiting) = key.and_then(|key| behind.get_mut(key)) {
                    waiting.push_back(at);
                    continue;
                }
                let sending = link.sender.send_batchable(delivery::write(&self.messages[at]));
                match link.opened.unless_ended(sending).await {
                    Some(Ok(outcome)) => {
                        in_flight.push(async move { (at, outcome.await) });
                        behind.extend(key.map(|key| (key, VecDeque::new())));
                    }
                    Some(Err(error)) => match Amqp1Sink::impossible(&error) {
                        Some(never) => self.answers[at] = Some(Err(never)),
                        // Some of those on their way may have an outcome yet, but nobody will tell us.
                        None => break,
                    },
                    None => break,
                }
            }
            let said = link.opened.unless_ended(in_flight.next()).await;
            let Some((at, result)) = said.flatten() else { return };
            // Nobody knows what became of it, so those behind it wait too.
            let Some(answer) = Amqp1Sink::answer(result) else { continue };
            let waiting = self.key(at).and_then(|key| behind.remove(key)).unwrap_or_default();
            if matches!(answer, Err(SendFailure::Retry(_))) {
                for at in waiting {
                    self.answers[at] = Some(Err(waits()));
                }
            } else {
                ready.extend(waiting);
            }
            self.answers[at] = Some(answer);
        }
    }

    /// Sends what is not answered, one by one, over new connections. A message that breaks one is to blame.
    ///
    /// Answers the connection for the next call. Fails when the server cannot be reached and nothing is answered.
    pub(crate) async fn send_singly(&mut self, sink: &Amqp1Sink) -> Result<Option<Link>, Error> {
        let mut stuck: HashSet<&str> = HashSet::new();
        let mut current: Option<Link> = None;
        let mut breaks = 0;
        for at in 0..self.messages.len() {
            if self.answers[at].is_some() {
                continue;
            }
            if self.key(at).is_some_and(|key| stuck.contains(key)) {
                self.answers[at] = Some(Err(waits()));
                continue;
            }
            let mut link = match current.take() {
                Some(link) => link,
                None if breaks == BREAKS => break,
                None => match sink.connect().await {
                    Ok(link) => link,
                    Err(error) if self.answers.iter().all(Option::is_none) => return Err(error),
                    Err(error) => {
                        self.fail_rest(&error);
                        break;
                    }
                },
            };
            let sending = link.sender.send(delivery::write(&self.messages[at]));
            let result = link.opened.unless_ended(sending).await;
            let broken = match &result {
                Some(result) => result.as_ref().err().map(ToString::to_string),
                None => Some("the server ended it".to_owned()),
            };
            let answer = match result.and_then(Amqp1Sink::answer) {
                Some(answer) => {
                    current = Some(link);
                    answer
                }
                None => {
                    breaks += 1;
                    let why = broken.unwrap_or_default();
                    Err(SendFailure::Retry(format!("the connection broke on it: {why}")))
                }
            };
            if matches!(answer, Err(SendFailure::Retry(_))) {
                stuck.extend(self.key(at));
            }
            self.answers[at] = Some(answer);
        }
        Ok(current)
    }

    fn key(&self, at: usize) -> Option<&'a str> {
        self.messages[at].key.as_deref()
    }

    fn fail_rest(&mut self, error: &Error) {
        for answer in self.answers.iter_mut().filter(|answer| answer.is_none()) {
            *answer = Some(Err(SendFailure::Retry(error.to_string())));
        }
    }
}

fn waits() -> SendFailure {
    SendFailure::Retry("a message of its key before it was not sent".to_owned())
}
