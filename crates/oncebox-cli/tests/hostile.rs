//! Requests that no honest client sends: refused or hung up on, and nothing breaks.

#![allow(clippy::unwrap_used)]

mod support;

use oncebox_testkit::until;
use support::{Place, Service, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD: &str = "POST /in/default HTTP/1.1\r\nhost: localhost\r\nwebhook-id: odd\r\nx-kind: k\r\n";

/// Everything that comes back for these bytes, until the other side hangs up.
async fn answers(service: &Service, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    // The other side may hang up before it has read everything.
    let _ = stream.write_all(bytes).await;
    rest(stream).await
}

/// The same for bytes that may end in the middle: nobody has to wait for the others.
async fn answers_to_the_last(service: &Service, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    rest(stream).await
}

async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(support::DEADLINE, stream.read_to_end(&mut answer)).await.expect("an end");
    text(&answer)
}

fn statuses(answers: &str) -> Vec<u16> {
    let answers = answers.replace("HTTP/1.0 ", "HTTP/1.1 ");
    answers.split("HTTP/1.1 ").skip(1).map(|answer| answer[..3].parse().expect("a status")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_requests_are_refused_and_nothing_breaks() {
    let place = Place::new(
        "[http]\nlisten = \"127.0.0.1:0\"\nmax_headers = 20\nmax_header_size = \"8KiB\"\n[log]\nlevel = \"debug\"\n",
    );
    let mut service = place.serve(&[]);
    let many: String = (0..50).map(|number| format!("x-{number}: 1\r\n")).collect();
    let (long, path) = ("a".repeat(20_000), "p".repeat(70_000));
    let corpus: Vec<(&str, Vec<u8>)> = [
        ("many headers", format!("{HEAD}{many}content-length: 1\r\n\r\nx")),
        ("a huge header", format!("{HEAD}x-long: {long}\r\ncontent-length: 1\r\n\r\nx")),
        ("a huge name", format!("{HEAD}{long}: 1\r\ncontent-length: 1\r\n\r\nx")),
        ("a huge path", format!("POST /in/{path} HTTP/1.1\r\nhost: localhost\r\n\r\n")),
        ("two lengths", format!("{HEAD}content-length: 1\r\ncontent-length: 2\r\n\r\nxx")),
        ("the same length twice", format!("{HEAD}content-length: 1\r\ncontent-length: 1\r\n\r\nx")),
        ("a list of lengths", format!("{HEAD}content-length: 1, 1\r\n\r\nx")),
        ("a negative length", format!("{HEAD}content-length: -1\r\n\r\nx")),
        ("a length with a sign", format!("{HEAD}content-length: +1\r\n\r\nx")),
        ("a length in hex", format!("{HEAD}content-length: 0x1\r\n\r\nx")),
        ("an empty length", format!("{HEAD}content-length:\r\n\r\nx")),
        ("a length beyond all numbers", format!("{HEAD}content-length: 99999999999999999999999\r\n\r\nx")),
        (
            "length, then chunks",
            format!("{HEAD}content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        ),
        (
            "chunks, then length",
            format!("{HEAD}transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n0\r\n\r\n"),
        ),
        (
            "chunks in capitals, then length",
            format!("{HEAD}TRANSFER-ENCODING: chunked\r\nCONTENT-LENGTH: 5\r\n\r\n0\r\n\r\n"),
        ),
        (
            "chunks twice",
            format!("{HEAD}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        ),
        ("chunks as identity", format!("{HEAD}transfer-encoding: identity\r\ncontent-length: 1\r\n\r\nx")),
        ("another coding", format!("{HEAD}transfer-encoding: gzip\r\n\r\nx")),
        ("chunks are not last", format!("{HEAD}transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n")),
        ("a space before the colon", format!("{HEAD}transfer-encoding : chunked\r\n\r\n0\r\n\r\n")),
        ("a folded header", format!("{HEAD}transfer-encoding:\r\n chunked\r\ncontent-length: 1\r\n\r\nx")),
        (
            "chunks in HTTP/1.0",
            "POST /in/default HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        ),
        ("a chunk of no size", format!("{HEAD}transfer-encoding: chunked\r\n\r\n\r\nx\r\n0\r\n\r\n")),
        (
            "a chunk of a negative size",
            format!("{HEAD}transfer-encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n"),
        ),
        ("a chunk of letters", format!("{HEAD}transfer-encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n")),
        (
            "a chunk beyond all numbers",
            format!("{HEAD}transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n0\r\n\r\n"),
        ),
        (
            "a chunk larger than it says",
            format!("{HEAD}transfer-encoding: chunked\r\n\r\n1\r\nxxxx\r\n0\r\n\r\n"),
        ),
        ("chunks without an end", format!("{HEAD}transfer-encoding: chunked\r\n\r\n5\r\nxx")),
        ("a body cut short", format!("{HEAD}content-length: 100\r\n\r\nxx")),
        ("garbage", "GARBAGE\r\n\r\n".to_owned()),
        ("another protocol", "SSH-2.0-OpenSSH_9.2\r\n".to_owned()),
        ("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        ("a version of the future", "POST /in/default HTTP/9.9\r\n\r\n".to_owned()),
        ("a NUL in the path", "POST /in/de%00fault HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned()),
        ("dots in the path", "POST /in/../in/default HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned()),
        ("a control character in a header", format!("{HEAD}x-a: a\x0bb\r\ncontent-length: 0\r\n\r\n")),
        ("a NUL in a header", format!("{HEAD}x-a: a\0b\r\ncontent-length: 0\r\n\r\n")),
        ("a NUL in a name", format!("{HEAD}x\0a: b\r\ncontent-length: 0\r\n\r\n")),
        ("only NULs", "\0".repeat(1000)),
        ("a bare carriage return", format!("{HEAD}x-a: a\rb: c\r\ncontent-length: 0\r\n\r\n")),
        ("a tunnel", "CONNECT 127.0.0.1:1 HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned()),
        ("another method", "DELETE /in/default HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned()),
        ("nothing", String::new()),
    ]
    .map(|(name, request)| (name, request.into_bytes()))
    .into_iter()
    .chain([("no text", vec![0xff; 100]), ("a greeting of TLS", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3])])
    .collect();
    for (name, request) in &corpus {
        let shown = answers_to_the_last(&service, request).await;
        let statuses = statuses(&shown);
        assert!(statuses.iter().all(|status| (400..500).contains(status)), "{name}: {shown}");
        assert!(statuses.len() <= 1, "{name}: one request, one answer: {shown}");
        assert_eq!(service.get("/health/live").await.status, 200, "{name}");
    }
    // Of these it is known which answer they get: silence would hide that nobody looked.
    for name in
        ["length, then chunks", "chunks, then length", "chunks in capitals, then length", "two lengths"]
    {
        let request = &corpus.iter().find(|(own, _)| *own == name).unwrap().1;
        assert_eq!(statuses(&answers(&service, request).await), [400], "{name}");
    }
    // Allowed, if odd: lines that end without a carriage return, and no host in HTTP/1.0.
    for request in [
        "POST /in/default HTTP/1.1\nhost: localhost\nconnection: close\nwebhook-id: lf\nx-kind: k\ncontent-length: 1\n\nx",
        "POST /in/default HTTP/1.0\r\nwebhook-id: old\r\nx-kind: k\r\ncontent-length: 1\r\n\r\nx",
        "POST /in/default HTTP/1.1\r\nwebhook-id: no-host\r\nconnection: close\r\nx-kind: k\r\ncontent-length: 1\r\n\r\nx",
    ] {
        let shown = answers(&service, request.as_bytes()).await;
        assert!(matches!(statuses(&shown)[..], [202 | 400]), "{request}: {shown}");
    }
    assert!(service.is_running());
    assert!(!service.log().contains("panicked"), "{}", service.log());
    assert!(!service.log().contains('\u{1b}'), "a control character is in the log");
    assert!(service.log().lines().all(|line| line.starts_with('{')), "{}", service.log());
    let ids: Vec<String> =
        sqlx::query_scalar("select id from oncebox_log").fetch_all(&place.open().await).await.unwrap();
    assert!(!ids.contains(&"odd".to_owned()), "nothing of what was refused is stored: {ids:?}");
    service.stop();
}

/// What looks like the body of a request for one reader must not be a request for another.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_smuggled_behind_a_request() {
    let place = Place::new("");
    let service = place.serve(&[]);
    let inner = "POST /in/default HTTP/1.1\r\nhost: localhost\r\nwebhook-id: smuggled\r\nx-kind: k\r\ncontent-length: 1\r\n\r\nx";
    let good = "POST /in/default HTTP/1.1\r\nhost: localhost\r\nwebhook-id: good\r\nx-kind: k\r\ncontent-length: 1\r\n\r\nx";
    for lengths in [
        format!("content-length: {}\r\ntransfer-encoding: chunked", inner.len() + 5),
        format!("transfer-encoding: chunked\r\ncontent-length: {}", inner.len() + 5),
    ] {
        // Also behind a good request on the same connection.
        for first in ["", good] {
            let request = format!("{first}{HEAD}{lengths}\r\n\r\n0\r\n\r\n{inner}");
            let statuses = statuses(&answers(&service, request.as_bytes()).await);
            assert_eq!(statuses.last(), Some(&400), "{request}");
            assert_eq!(statuses.len(), if first.is_empty() { 1 } else { 2 }, "{request}");
        }
    }
    // A request in chunks is taken, and the last one of its connection.
    let chunks = format!(
        "POST /in/default HTTP/1.1\r\nhost: localhost\r\nwebhook-id: chunks\r\nx-kind: k\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n{inner}"
    );
    let shown = answers(&service, chunks.as_bytes()).await;
    assert_eq!(statuses(&shown), [202], "{shown}");
    let mut ids: Vec<String> =
        sqlx::query_scalar("select id from oncebox_log").fetch_all(&place.open().await).await.unwrap();
    ids.sort_unstable();
    assert_eq!(ids, ["chunks", "good"]);
}

/// Two bytes a line, and fifty times as many in the answer: the lines are what counts, and until the answer is read.
#[tokio::test(flavor = "multi_thread")]
async fn countless_lines_take_no_more_memory_than_there_is() {
    let place =
        Place::new("[http]\nlisten = \"127.0.0.1:0\"\nmax_body = \"8MiB\"\nmax_in_flight = \"8MiB\"\n");
    let service = place.serve(&[]);
    let most = 8 * 1024 * 1024 / 512;
    let headers = [("content-type", "application/x-ndjson")];
    let answer = service.post("/in/default", &headers, "0\n".repeat(most + 1)).await;
    assert_eq!(answer.status, 413, "{}", answer.body);
    assert!(answer.body.contains("more than 16384 lines; split it"), "{}", answer.body);

    let in_flight = async || -> u64 {
        let metrics = service.get("/metrics").await.body;
        let bytes = metrics.lines().find_map(|line| line.strip_prefix("oncebox_http_in_flight_bytes "));
        bytes.unwrap().parse().unwrap()
    };
    let mut unread = service.connect_narrow().await;
    let lines = "0\n\n".repeat(most);
    let head = format!("content-type: application/x-ndjson\r\ncontent-length: {}\r\n", lines.len());
    unread.send("POST", "/in/default", &head, lines.as_bytes()).await;
    assert_eq!(unread.status().await, 207, "empty lines do not count");
    assert!(in_flight().await > 1024 * 1024, "the answer waits to be read: {}", in_flight().await);
    drop(unread);
    until("the memory is free again", || async { in_flight().await == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_or_has_no_name_is_refused_before_it_is_looked_into() {
    let place = Place::new("[store]\nmax_payload = \"1KiB\"\n");
    let service = place.serve(&[]);
    // It has no id either, but nobody has looked for one: as JSON it would take many times its size.
    let large = format!("[{}0]", "0,".repeat(1024));
    assert_eq!(service.post("/in/default", &[], large).await.status, 413);
    let nameless = service.post("/in/%ff", &[], "x").await;
    assert_eq!((nameless.status, nameless.header("content-type")), (400, Some("application/json")));
    assert!(nameless.json()["error"].as_str().unwrap().contains("not UTF-8"), "{}", nameless.body);
}

/// A line may have as many headers as a request: each takes far more memory than the few letters it is written with.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_has_no_more_headers_than_a_request() {
    let place = Place::new("");
    let service = place.serve(&[]);
    let line = |id: &str, headers: usize, value: &str| {
        let headers: Vec<String> = (0..headers).map(|number| format!("\"{number}\":\"{value}\"")).collect();
        format!("{{\"id\":\"{id}\",\"kind\":\"k\",\"headers\":{{{}}},\"payload\":1}}\n", headers.join(","))
    };
    let lines = [
        line("most", 100, &"\\u0041".repeat(600)),
        line("more", 101, ""),
        line("countless", 100_000, ""),
        line("long", 1, &"a".repeat(64 * 1024)),
    ];
    let answer =
        service.post("/in/default", &[("content-type", "application/x-ndjson")], lines.concat()).await;
    let words: Vec<serde_json::Value> =
        answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&words[0]["id"], &words[0]["status"]), (&"most".into(), &"new".into()), "{words:?}");
    for (place, id, error) in
        [(1, "more", "101 headers; the limit is 100"), (2, "countless", "bytes"), (3, "long", "bytes")]
    {
        let word = &words[place];
        assert_eq!((&word["id"], &word["status"]), (&id.into(), &"invalid".into()), "{word}");
        assert!(word["error"].as_str().unwrap().contains(error), "{word}");
    }
}
