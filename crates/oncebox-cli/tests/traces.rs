//! Traces as a collector sees them: a real receiver on the other end of the wire reads what the service sends.

#![cfg(feature = "otlp")]
#![allow(clippy::unwrap_used)]

mod support;

use oncebox_testkit::until;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use support::Place;
use support::receiver::{Receiver, status};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn traced(collector: &str, rest: &str) -> Place {
    Place::new(&format!("[telemetry]\notlp = \"{collector}\"\nservice_name = \"shop-inbox\"\n{rest}"))
}

/// Every span that has arrived, with the name of the service it came from.
fn spans(collector: &Receiver) -> Vec<(String, Span)> {
    let mut all = Vec::new();
    for got in collector.got() {
        assert_eq!(got.path, "/v1/traces");
        assert_eq!(got.header("content-type"), Some("application/x-protobuf"));
        let request = ExportTraceServiceRequest::decode(got.body.as_slice()).unwrap();
        for resource in request.resource_spans {
            let attributes = resource.resource.unwrap().attributes;
            let name = attributes.iter().find(|pair| pair.key == "service.name").unwrap();
            let Some(Value::StringValue(name)) = name.value.clone().unwrap().value else { panic!("a text") };
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            all.extend(spans.map(|span| (name.clone(), span)));
        }
    }
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text<'a>(span: &'a Span, key: &str) -> Option<&'a str> {
    let pair = span.attributes.iter().find(|pair| pair.key == key)?;
    match pair.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// The span of this name and message.
fn find(spans: &[(String, Span)], name: &str, id: &str) -> Option<Span> {
    let wanted = |span: &Span| span.name == name && text(span, "messaging.message.id") == Some(id);
    spans.iter().map(|(_, span)| span).find(|span| wanted(span)).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_one_trace_from_its_sender_to_its_sink() {
    let collector = Receiver::start(|_, _| status("200 OK", "", "")).await;
    let target = Receiver::start(|got, _| match got.path.as_str() {
        "/refuses" => status("400 Bad Request", "", "no"),
        _ => status("200 OK", "", ""),
    })
    .await;
    let place = traced(
        &format!("http://{}", collector.address),
        &format!(
            "[handler.call]\non = [\"order\"]\nhttp = \"http://{0}/call\"\n\
             [handler.fail]\non = [\"order\"]\nhttp = \"http://{0}/refuses\"\n\
             [handler.forward]\non = [\"order\"]\nsink = \"out\"\n\
             [sink.out]\ntype = \"http\"\nurl = \"http://{0}/sink\"\n",
            target.address
        ),
    );
    let service = place.serve(&[]);
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [("webhook-id", "m1"), ("x-kind", "order"), ("traceparent", parent.as_str())];
    assert_eq!(service.post("/in/default", &headers, "x").await.status, 202);
    until("all spans have arrived", || async {
        let spans = spans(&collector);
        let attempts = spans.iter().filter(|(_, span)| span.name == "oncebox.attempt").count();
        attempts == 3
            && find(&spans, "oncebox.receive", "m1").is_some()
            && find(&spans, "oncebox.send", "m1").is_some()
    })
    .await;
    let all = spans(&collector);
    assert!(all.iter().all(|(service, _)| service == "shop-inbox"));
    assert!(all.iter().all(|(_, span)| hex(&span.trace_id) == TRACE), "one trace");
    assert!(all.iter().all(|(_, span)| span.end_time_unix_nano >= span.start_time_unix_nano));
    let receive = find(&all, "oncebox.receive", "m1").unwrap();
    assert_eq!(hex(&receive.parent_span_id), CALLER, "linked to who sent it");
    let attempt = |handler: &str| {
        let wanted = |span: &&Span| text(span, "oncebox.handler") == Some(handler);
        all.iter().map(|(_, span)| span).find(wanted).unwrap().clone()
    };
    for handler in ["call", "fail", "forward"] {
        assert_eq!(attempt(handler).parent_span_id, receive.span_id, "{handler} is below the receiving");
    }
    let send = find(&all, "oncebox.send", "m1").unwrap();
    assert_eq!(text(&send, "oncebox.sink"), Some("out"));
    // A message that is forwarded carries the trace it was stored with.
    assert_eq!(send.parent_span_id, receive.span_id);
    let failed = attempt("fail").status.unwrap();
    assert_eq!(failed.code, 2, "an error");
    assert!(failed.message.contains("400"), "{}", failed.message);
    assert_ne!(attempt("call").status.unwrap_or_default().code, 2);
    // Whoever is called can go on from there.
    let sent = |path: &str| {
        let got = target.got().into_iter().find(|got| got.path == path).unwrap();
        got.header("traceparent").unwrap().to_owned()
    };
    assert_eq!(sent("/call"), format!("00-{TRACE}-{}-01", hex(&attempt("call").span_id)));
    assert_eq!(sent("/sink"), format!("00-{TRACE}-{}-01", hex(&send.span_id)));
    service.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_begins_here_when_none_came_and_a_mark_that_came_is_kept() {
    let collector = Receiver::start(|_, _| status("200 OK", "", "")).await;
    let handler = "[handler.h]\non = [\"*\"]\nsql = \"select :id\"\n";
    let place = traced(&format!("http://{}", collector.address), handler);
    let service = place.serve(&[]);
    let unmarked = format!("00-{TRACE}-{CALLER}-00");
    let headers = [("webhook-id", "quiet"), ("x-kind", "k"), ("traceparent", unmarked.as_str())];
    assert_eq!(service.post("/in/default", &headers, "x").await.status, 202);
    assert_eq!(service.send("new", "k", "x").await.status, 202);
    until("the new trace has arrived", || async {
        find(&spans(&collector), "oncebox.attempt", "new").is_some()
    })
    .await;
    let all = spans(&collector);
    let (receive, attempt) =
        (find(&all, "oncebox.receive", "new").unwrap(), find(&all, "oncebox.attempt", "new").unwrap());
    assert!(receive.parent_span_id.is_empty(), "it begins here");
    assert_eq!((attempt.trace_id, attempt.parent_span_id), (receive.trace_id, receive.span_id));
    service.stop();
    // Everything has been sent before the process ended.
    assert!(find(&spans(&collector), "oncebox.receive", "quiet").is_none(), "its sender did not want it");

    let place = traced(&format!("http://{}", collector.address), &format!("sample = 0.0\n{handler}"));
    let service = place.serve(&[]);
    assert_eq!(service.send("unsampled", "k", "x").await.status, 202);
    until("it is done", || async {
        service.get("/metrics").await.body.contains("oncebox_done_total{handler=\"h\"} 1\n")
    })
    .await;
    service.stop();
    assert!(
        find(&spans(&collector), "oncebox.receive", "unsampled").is_none(),
        "none of those that begin here"
    );
}

/// What the last spans of a process say is sent before it ends.
#[tokio::test(flavor = "multi_thread")]
async fn spans_are_sent_before_the_process_ends() {
    let collector = Receiver::start(|_, _| status("200 OK", "", "")).await;
    let place = traced(&format!("http://{}", collector.address), "");
    let service = place.serve(&[]);
    assert_eq!(service.send("last", "k", "x").await.status, 202);
    service.stop();
    assert!(find(&spans(&collector), "oncebox.receive", "last").is_some());
}

/// Nobody listens; somebody accepts and never answers; somebody refuses. Messages do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_stops_nobody() {
    let (silent, refusing) =
        (Receiver::always("wait").await, Receiver::start(|_, _| status("500 No", "", "")).await);
    let addresses = [
        "http://127.0.0.1:1".to_owned(),
        format!("http://{}", silent.address),
        format!("http://{}", refusing.address),
    ];
    for collector in addresses {
        let place = traced(&collector, "[handler.h]\non = [\"*\"]\nsql = \"select :id\"\n");
        let service = place.serve(&[]);
        // More spans than the queue holds, so that some have to be dropped.
        for batch in 0..5 {
            let lines: String = (0..1000)
                .map(|number| format!("{{\"id\":\"{batch}-{number}\",\"kind\":\"k\",\"payload\":1}}\n"))
                .collect();
            let answer =
                service.post("/in/default", &[("content-type", "application/x-ndjson")], lines).await;
            assert_eq!(answer.status, 207, "{collector}");
        }
        until("all are done", || async {
            service.get("/metrics").await.body.contains("oncebox_done_total{handler=\"h\"} 5000\n")
        })
        .await;
        assert_eq!(service.get("/health/ready").await.status, 200, "{collector}");
        let stopping = std::time::Instant::now();
        let log = service.log();
        assert!(log.matches("traces cannot be delivered").count() <= 1, "told once: {log}");
        service.stop();
        assert!(stopping.elapsed() < std::time::Duration::from_secs(20), "{collector} held up the end");
    }
}
