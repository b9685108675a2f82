//! Traces: the spans of the engine, sent to a collector by OTLP over HTTP.
//!
//! The engine gives each span its ids, because they travel on in the messages. So they are exported as they are,
//! instead of having a tracing library make up others. A collector that is slow or away costs nothing but the spans:
//! they are handed to a thread through a queue that drops what does not fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use oncebox::{Error, ErrorKind};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanProcessor};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::config::TelemetryConfig;

/// How long one request to the collector may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last spans may take when the service stops.
const LAST: Duration = Duration::from_secs(2);
/// How long spans are collected before they are sent.
const EVERY: Duration = Duration::from_secs(1);

/// Sends spans until it is shut down.
#[derive(Debug, Clone)]
pub struct Traces {
    processor: Arc<BatchSpanProcessor>,
    scope: InstrumentationScope,
}

impl Traces {
    /// Starts the thread that sends; `None` when no collector is configured.
    ///
    /// Fails when requests cannot be made at all. Whether there is a collector is not asked. Must be called inside a
    /// Tokio runtime.
    pub fn start(config: &TelemetryConfig) -> Result<Option<Self>, Error> {
        let Some(collector) = &config.otlp else { return Ok(None) };
        let cannot = |error: &dyn std::error::Error| {
            Error::new(ErrorKind::Invalid, format!("traces cannot be sent: {error}"))
        };
        crate::service::use_ring();
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| cannot(&error))?;
        let client =
            Collector { client, runtime: tokio::runtime::Handle::current(), is_away: AtomicBool::new(false) };
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint(collector))
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| cannot(&error))?;
        let resource = Resource::builder_empty()
            .with_attributes([
                KeyValue::new("service.name", config.service_name.clone()),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            ])
            .build();
        opentelemetry_sdk::trace::SpanExporter::set_resource(&mut exporter, &resource);
        let batches = BatchConfigBuilder::default().with_scheduled_delay(EVERY).build();
        let scope = InstrumentationScope::builder("oncebox").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Some(Self { processor: Arc::new(BatchSpanProcessor::new(exporter, batches)), scope }))
    }

    /// What listens to the engine's spans.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        SpanLayer(self.clone()).with_filter(filter_fn(is_ours))
    }

    /// Sends what is left, for a short time.
    pub async fn finish(self) {
        let ended = tokio::task::spawn_blocking(move || self.processor.shutdown_with_timeout(LAST)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::debug!("the last spans could not be sent");
        }
    }
}

fn endpoint(collector: &url::Url) -> String {
    let text = collector.as_str().trim_end_matches('/');
    if text.ends_with("/v1/traces") { text.to_owned() } else { format!("{text}/v1/traces") }
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with("oncebox") && metadata.name().starts_with("oncebox.")
}

/// Requests run on the service's runtime, whichever thread asks for them.
#[derive(Debug)]
struct Collector {
    client: reqwest::Client,
    runtime: tokio::runtime::Handle,
    is_away: AtomicBool,
}

impl Collector {
    async fn post(
        client: reqwest::Client,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, reqwest::Error> {
        let answer = client.execute(request.try_into()?).await.map_err(reqwest::Error::without_url)?;
        let status = answer.status();
        let mut response = Response::new(answer.bytes().await?);
        *response.status_mut() = status;
        Ok(response)
    }

    /// Once for each time that it goes away.
    fn note(&self, problem: Option<String>) {
        let was_away = self.is_away.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(error) if !was_away => {
                tracing::warn!(
                    error,
                    "traces cannot be delivered; they are dropped until the collector is back"
                );
            }
            None if was_away => tracing::info!("traces are delivered again"),
            _ => {}
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.runtime.spawn(Self::post(self.client.clone(), request)).await;
        match answer {
            Ok(Ok(response)) => {
                let status = response.status();
                self.note((!status.is_success()).then(|| format!("it answered {status}")));
                Ok(response)
            }
            Ok(Err(error)) => {
                self.note(Some(error.to_string()));
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

struct SpanLayer(Traces);

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut begun = Begun::default();
        attributes.record(&mut begun);
        if let (true, Some(span)) = (begun.sampled, context.span(id)) {
            span.extensions_mut().insert(begun);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(begun) = span.extensions_mut().get_mut::<Begun>()
        {
            values.record(begun);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(begun) = span.extensions_mut().remove::<Begun>() else { return };
        if let Some(data) = begun.end(span.name(), &self.0.scope) {
            self.0.processor.on_end(data);
        }
    }
}

/// A span that is under way.
#[derive(Debug)]
struct Begun {
    at: SystemTime,
    trace_id: TraceId,
    span_id: SpanId,
    parent_id: SpanId,
    sampled: bool,
    failure: Option<String>,
    attributes: Vec<KeyValue>,
}

impl Default for Begun {
    fn default() -> Self {
        Self {
            at: SystemTime::now(),
            trace_id: TraceId::INVALID,
            span_id: SpanId::INVALID,
            parent_id: SpanId::INVALID,
            sampled: false,
            failure: None,
            attributes: Vec::new(),
        }
    }
}

impl Begun {
    fn end(self, name: &'static str, scope: &InstrumentationScope) -> Option<SpanData> {
        let context =
            SpanContext::new(self.trace_id, self.span_id, TraceFlags::SAMPLED, false, TraceState::default());
        context.is_valid().then(|| SpanData {
            span_context: context,
            parent_span_id: self.parent_id,
            // The step before may have been anywhere.
            parent_span_is_remote: self.parent_id != SpanId::INVALID,
            span_kind: kind(name),
            name: name.into(),
            start_time: self.at,
            end_time: SystemTime::now(),
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: self.failure.map_or(Status::Unset, Status::error),
            instrumentation_scope: scope.clone(),
        })
    }

    fn note(&mut self, field: &Field, text: &str) {
        match field.name() {
            "trace_id" => self.trace_id = TraceId::from_hex(text).unwrap_or(TraceId::INVALID),
            "span_id" => self.span_id = SpanId::from_hex(text).unwrap_or(SpanId::INVALID),
            "parent_id" => self.parent_id = SpanId::from_hex(text).unwrap_or(SpanId::INVALID),
            "failure" => self.failure = Some(text.to_owned()),
            name => self.attributes.push(KeyValue::new(attribute(name), text.to_owned())),
        }
    }
}

impl Visit for Begun {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.note(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "sampled" => self.sampled = value,
            name => self.attributes.push(KeyValue::new(attribute(name), value)),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.attributes.push(KeyValue::new(attribute(field.name()), value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.note(field, &format!("{value:?}"));
    }
}

/// As OpenTelemetry calls it, where it has a name for it.
fn attribute(name: &'static str) -> &'static str {
    match name {
        "id" => "messaging.message.id",
        "messages" => "messaging.batch.message_count",
        "handler" => "oncebox.handler",
        "sink" => "oncebox.sink",
        "scope" => "oncebox.scope",
        "kind" => "oncebox.kind",
        "attempt" => "oncebox.attempt",
        other => other,
    }
}

fn kind(name: &str) -> SpanKind {
    match name {
        "oncebox.send" => SpanKind::Producer,
        "oncebox.receive" => SpanKind::Server,
        _ => SpanKind::Consumer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_for_traces_is_added_once() {
        for (given, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("https://collector.internal/otlp", "https://collector.internal/otlp/v1/traces"),
            ("https://collector.internal/v1/traces", "https://collector.internal/v1/traces"),
        ] {
            assert_eq!(endpoint(&given.parse().unwrap()), expected);
        }
    }
}
