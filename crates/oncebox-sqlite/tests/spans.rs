//! What the spans of a message say. In a process of its own: `tracing` remembers for all threads whether a span is
//! wanted, so whoever listens must be there before the first one.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};

use oncebox_core::{DEFAULT_SCOPE, Inbox, Message, handler, run};
use oncebox_testkit::{Subject, recording};
use support::SqliteSubject;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The name of each span of ours and the scope it gives, in order.
#[derive(Debug, Clone, Default)]
struct Scopes(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Subscriber for Scopes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.name().starts_with("oncebox.")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        struct Scope(String);
        impl Visit for Scope {
            fn record_str(&mut self, field: &Field, value: &str) {
                if field.name() == "scope" {
                    value.clone_into(&mut self.0);
                }
            }
            fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
        }
        let mut scope = Scope(String::new());
        span.record(&mut scope);
        let mut spans = self.0.lock().unwrap();
        spans.push((span.metadata().name(), scope.0));
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Who looks for a message finds all its spans under one scope, also when it came without one.
#[tokio::test]
async fn the_spans_of_a_message_say_the_scope_it_is_stored_under() {
    let scopes = Scopes::default();
    tracing::subscriber::set_global_default(scopes.clone()).unwrap();
    let subject = SqliteSubject::create().await.unwrap();
    let charge = handler("charge", recording::<SqliteSubject>("charge"));
    let inbox = Inbox::new(subject.store()).on("order.placed", charge).traces(1.0);
    run(inbox.clone()).drain().await.unwrap();
    for message in [Message::new("order.placed", "x"), Message::new("order.placed", "x").scope("shop")] {
        inbox.receive(&[message]).await.unwrap();
        run(inbox.clone()).drain().await.unwrap();
    }
    let spans = |scope: &str| ["oncebox.receive", "oncebox.attempt"].map(|name| (name, scope.to_owned()));
    assert_eq!(*scopes.0.lock().unwrap(), [spans(DEFAULT_SCOPE), spans("shop")].concat());
}
