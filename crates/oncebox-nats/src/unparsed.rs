//! Messages that the client cannot read.
//!
//! The server stores whatever bytes a producer sent as headers. The client ends the connection over headers that are
//! not UTF-8 or no headers at all, so such a message would end every connection for ever. After a loss we look at the
//! messages that are waiting for acknowledgement through the server's JSON interface, which has the bytes in base64,
//! and take those in from there.

use async_nats::Subject;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use oncebox_core::Error;
use oncebox_core::mapping::Mapped;
use serde_json::{Value, json};

use crate::api::{Api, ApiError, MESSAGE_NOT_FOUND};
use crate::config::NatsSourceConfig;
use crate::envelope;

/// The most messages looked at after one loss.
const MOST: usize = 20_000;

/// The messages, delivered and not acknowledged, that the client cannot read, as far as the server tells.
pub(crate) async fn find(
    api: &Api,
    config: &NatsSourceConfig,
    consumer: &Value,
) -> Vec<(Subject, usize, Mapped)> {
    let place = |of: &str| consumer[of]["stream_seq"].as_u64().unwrap_or_default();
    if consumer["num_ack_pending"].as_u64().unwrap_or_default() == 0 {
        return Vec::new();
    }
    let filters = filters(&consumer["config"]);
    let mut found = Vec::new();
    for filter in filters {
        let mut sequence = place("ack_floor") + 1;
        for _ in 0..MOST {
            if sequence > place("delivered") {
                break;
            }
            let question = json!({ "seq": sequence, "next_by_subj": filter });
            let message = match api.ask(&format!("STREAM.MSG.GET.{}", config.stream), &question).await {
                Ok(answer) => answer["message"].clone(),
                Err(ApiError::Refused { code: MESSAGE_NOT_FOUND, .. }) => break,
                Err(error) => {
                    // Without the right to ask, say; then only such messages are in the way, if there are any.
                    let error = Error::from(error);
                    tracing::warn!(stream = config.stream, %error, "messages could not be looked at after a loss");
                    return found;
                }
            };
            let Some(at) = message["seq"].as_u64().filter(|at| *at <= place("delivered")) else { break };
            sequence = at + 1;
            let raw = decoded(&message["hdrs"]);
            let subject = message["subject"].as_str().unwrap_or_default();
            // The server writes U+FFFD for bytes that are not UTF-8.
            if is_readable(&raw) && !subject.contains('\u{fffd}') {
                continue;
            }
            tracing::warn!(
                stream = config.stream,
                sequence = at,
                "a message has headers that the NATS client cannot read; it is taken in another way"
            );
            found.push(taken(config, subject, &raw, decoded(&message["data"]), at));
        }
    }
    found
}

fn filters(consumer: &Value) -> Vec<String> {
    let many = consumer["filter_subjects"].as_array().into_iter().flatten();
    let all = many.chain([&consumer["filter_subject"]]).filter_map(Value::as_str);
    let filters: Vec<String> = all.filter(|filter| !filter.is_empty()).map(str::to_owned).collect();
    if filters.is_empty() { vec![">".to_owned()] } else { filters }
}

fn decoded(value: &Value) -> Vec<u8> {
    value.as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default()
}

fn taken(
    config: &NatsSourceConfig,
    subject: &str,
    raw: &[u8],
    payload: Vec<u8>,
    at: u64,
) -> (Subject, usize, Mapped) {
    // The subject under which the consumer delivered it, as far as the server looks at it: it finds the message by its
    // place in the stream.
    let reply = format!("$JS.ACK.{}.{}.1.{at}.0.0.0", config.stream, config.consumer);
    let bytes = raw.len() + payload.len();
    let position = format!("{}-{at}", config.stream);
    let mapped = envelope::read(&config.mapping, subject, listed(raw), Bytes::from(payload), position);
    (reply.into(), bytes, mapped)
}

/// Whether the client reads these headers.
fn is_readable(raw: &[u8]) -> bool {
    if raw.is_empty() {
        return true;
    }
    let Ok(text) = std::str::from_utf8(raw) else { return false };
    let mut lines = text.lines();
    let is_version = |line: &str| line.strip_prefix("NATS/1.0").is_some_and(|rest| rest.trim().is_empty());
    let is_name = |name: &str| !name.contains(|c: char| !c.is_ascii_graphic());
    lines.next().is_some_and(is_version)
        && lines.filter(|line| !line.is_empty()).all(|line| {
            let goes_on = line.starts_with(char::is_whitespace);
            !line.contains('\r') && (goes_on || line.split_once(':').is_some_and(|(name, _)| is_name(name)))
        })
}

/// The headers as far as they can be told apart, byte by byte.
fn listed(raw: &[u8]) -> Vec<(String, Bytes)> {
    let lines = raw.split(|byte| *byte == b'\n').skip(1);
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)).filter(|line| !line.is_empty());
    let mut listed: Vec<(String, Bytes)> = lines
        .map(|line| {
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            let value = line.get(colon + 1..).unwrap_or_default().trim_ascii();
            (String::from_utf8_lossy(&line[..colon]).into_owned(), Bytes::copy_from_slice(value))
        })
        .collect();
    listed.sort_by(|(one, _), (other, _)| one.cmp(other));
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_cannot_read_is_told_apart() {
        for readable in [&b""[..], b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\na: 1\r\nb:\xc3\xbc\r\n\r\n"] {
            assert!(is_readable(readable), "{readable:?}");
        }
        for unreadable in [
            &b"NATS/1.0\r\na: \xff\r\n\r\n"[..],
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.0\r\na b: 1\r\n\r\n",
            b"NATS/1.0\r\na: 1\r2\r\n\r\n",
            b"HTTP/1.1\r\na: 1\r\n\r\n",
        ] {
            assert!(!is_readable(unreadable), "{unreadable:?}");
        }
    }

    #[test]
    fn headers_are_kept_byte_by_byte() {
        let raw = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nb: \xff\r2\r\nbare\r\n\r\n";
        let expected = [("Nats-Msg-Id", &b"7"[..]), ("b", b"\xff\r2"), ("bare", b"")];
        let expected = expected.map(|(name, value)| (name.to_owned(), Bytes::from_static(value)));
        assert_eq!(listed(raw), expected);
    }
}
