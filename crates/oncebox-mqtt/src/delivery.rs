//! What a message looks like as an MQTT packet, in both directions.
//!
//! Headers are user properties. Those hold text only, so a value that is not plain text travels in base64 under its
//! name and [`ENCODED`].

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use oncebox_core::mapping::{Delivered, ID_HEADER, KEY_HEADER, KIND_HEADER};
use oncebox_core::{Headers, Message};
use rumqttc::Publish;
use rumqttc::mqttbytes::v5::PublishProperties;
use rumqttc::mqttbytes::valid_topic;

/// Follows the name of a user property whose value is in base64.
const ENCODED: &str = ";base64";
/// On messages that the server had kept for new subscribers.
const RETAINED: &str = "mqtt-retained";
const CONTENT_TYPE: &str = "content-type";
const RESPONSE_TOPIC: &str = "response-topic";
const CORRELATION_DATA: &str = "correlation-data";
const MESSAGE_EXPIRY: &str = "message-expiry";
/// The most bytes of a text in a packet.
const LONGEST_TEXT: usize = 65_535;

/// Reads a packet; whatever it holds, something comes out.
pub(crate) fn read(publish: &Publish, topic_header: Option<&str>) -> Delivered {
    let route = String::from_utf8_lossy(&publish.topic).into_owned();
    let mut headers = Headers::new();
    let mut properties = Vec::new();
    if let Some(given) = &publish.properties {
        for (name, value) in &given.user_properties {
            let (name, value) = decoded(name, value);
            headers.push(name, value);
        }
        let content_type = given.content_type.clone().map(Bytes::from);
        let response_topic = given.response_topic.clone().map(Bytes::from);
        let expiry = given.message_expiry_interval.map(|seconds| Bytes::from(seconds.to_string()));
        let own = [
            (CONTENT_TYPE, content_type),
            (RESPONSE_TOPIC, response_topic),
            (CORRELATION_DATA, given.correlation_data.clone()),
            (MESSAGE_EXPIRY, expiry),
        ];
        for (name, value) in own {
            let Some(value) = value else { continue };
            // Our sink writes it at both places, so that the headers come out as they went in.
            if headers.get(name).is_none() {
                headers.push(name, value.clone());
            }
            properties.push((name, value));
        }
    }
    if publish.retain {
        headers.push(RETAINED, "true");
    }
    if let Some(name) = topic_header {
        headers.push(name, route.clone());
    }
    Delivered { properties, headers, payload: publish.payload.clone(), route, position: None }
}

/// The properties of a packet that carries this message.
///
/// Fails, for people, when MQTT has no way to carry a header.
pub(crate) fn properties(message: &Message) -> Result<PublishProperties, String> {
    let mut user_properties = Vec::with_capacity(message.headers.len() + 3);
    let own = [
        (ID_HEADER, Some(message.id.as_bytes())),
        (KIND_HEADER, Some(message.kind.as_bytes())),
        (KEY_HEADER, message.key.as_deref().map(str::as_bytes)),
    ];
    for (name, value) in own {
        if let Some(value) = value {
            user_properties.push(encoded(name, value)?);
        }
    }
    for (name, value) in message.headers.iter() {
        user_properties.push(encoded(name, value)?);
    }
    let text = |name: &str| message.headers.text(name).filter(|text| is_plain(text)).map(str::to_owned);
    Ok(PublishProperties {
        content_type: text(CONTENT_TYPE),
        response_topic: text(RESPONSE_TOPIC).filter(|topic| is_topic(topic)),
        correlation_data: message
            .headers
            .get(CORRELATION_DATA)
            .filter(|data| data.len() <= LONGEST_TEXT)
            .cloned(),
        user_properties,
        ..PublishProperties::default()
    })
}

/// The topic for a message, from a text with `{kind}` and `{key}`.
pub(crate) fn topic(template: &str, message: &Message) -> Result<String, String> {
    let key = message.key.as_deref().unwrap_or_default();
    if key.is_empty() && template.contains("{key}") {
        return Err(format!("it has no key, which the topic `{template}` needs"));
    }
    let topic = template.replace("{kind}", &message.kind).replace("{key}", key);
    if is_topic(&topic) {
        return Ok(topic);
    }
    let topic = topic.escape_debug();
    Err(format!(
        "`{topic:.200}` cannot be a topic: it must be 1 to 65535 bytes with no `+`, `#` or control character"
    ))
}

fn is_topic(topic: &str) -> bool {
    !topic.is_empty() && is_plain(topic) && valid_topic(topic)
}

fn encoded(name: &str, value: &[u8]) -> Result<(String, String), String> {
    let plain = std::str::from_utf8(value).ok().filter(|text| is_plain(text) && !name.ends_with(ENCODED));
    let (sent, value) = match plain {
        Some(text) => (name.to_owned(), text.to_owned()),
        None => (format!("{name}{ENCODED}"), STANDARD.encode(value)),
    };
    if !is_plain(&sent) || value.len() > LONGEST_TEXT {
        let name = name.escape_debug();
        return Err(format!(
            "header `{name:.200}` cannot travel by MQTT: names are text without control characters, and a value has \
             at most {LONGEST_TEXT} bytes"
        ));
    }
    Ok((sent, value))
}

fn decoded(name: &str, value: &str) -> (String, Bytes) {
    if let Some(plain) = name.strip_suffix(ENCODED)
        && let Ok(bytes) = STANDARD.decode(value)
    {
        return (plain.to_owned(), bytes.into());
    }
    (name.to_owned(), Bytes::copy_from_slice(value.as_bytes()))
}

/// Whether servers let a text pass: control characters and what Unicode calls no characters make it malformed.
fn is_plain(text: &str) -> bool {
    let refused = |c: char| {
        c.is_control()
            || matches!(c, '\u{fdd0}'..='\u{fdef}')
            || matches!(u32::from(c) & 0xffff, 0xfffe | 0xffff)
    };
    text.len() <= LONGEST_TEXT && !text.contains(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rumqttc::QoS;

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        let message = Message::with_id("id\n1", "order.placed", &b"\x00\xff"[..])
            .key("ä")
            .header("a", "1")
            .header("a", "2")
            .header("", "")
            .header("binary", &b"\xff\x00"[..])
            .header("line", "one\ntwo\u{fffe}")
            .header("x;base64", "plain")
            .header("Content-Type", "text/plain")
            .header("correlation-data", &b"\x01\xfe"[..])
            .header("response-topic", "no/+/topic");
        let properties = properties(&message).unwrap();
        assert_eq!(properties.content_type.as_deref(), Some("text/plain"));
        assert_eq!(properties.response_topic, None, "a wildcard would end the connection");
        let publish = Publish::new("t", QoS::AtLeastOnce, message.payload.clone(), Some(properties));
        let delivered = read(&publish, None);
        assert_eq!(delivered.payload, message.payload);
        let mut headers = delivered.headers;
        for (name, value) in [("message-id", "id\n1"), ("message-kind", "order.placed"), ("message-key", "ä")]
        {
            assert_eq!(headers.text(name), Some(value));
        }
        headers.retain(|name, _| !name.starts_with("message-"));
        assert_eq!(headers, message.headers);
    }

    #[test]
    fn what_cannot_travel_is_named() {
        let long = Message::new("k", "").header("big", "x".repeat(70_000));
        assert!(properties(&long).unwrap_err().contains("`big`"));
        let name = Message::new("k", "").header("a\nb", "x");
        assert!(properties(&name).unwrap_err().contains("a\\nb"));
        for kind in ["a/+", "#", "a\nb"] {
            assert!(
                topic("{kind}", &Message::new(kind, "")).unwrap_err().contains("cannot be a topic"),
                "{kind}"
            );
        }
        assert!(topic("{key}", &Message::new("k", "")).unwrap_err().contains("no key"));
        assert_eq!(topic("shop/{kind}/{key}", &Message::new("k", "").key(7)).unwrap(), "shop/k/7");
    }
}
