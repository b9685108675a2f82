//! What an operator does with RabbitMQ's own tool.

use xtask::rabbitmq::PrivateRabbitmq;

pub(crate) fn control(server: &PrivateRabbitmq, arguments: &[&str]) -> String {
    tokio::task::block_in_place(|| server.control(arguments)).unwrap()
}

/// Gives one queue rules of its own, as JSON.
pub(crate) fn set_policy(server: &PrivateRabbitmq, queue: &str, rules: &str) {
    control(server, &["set_policy", "--apply-to", "queues", queue, &format!("^{queue}$"), rules]);
}

/// What the queue rejects goes to the other one.
pub(crate) fn set_dead_letters(server: &PrivateRabbitmq, queue: &str, dead: &str) {
    let rules = format!(r#"{{"dead-letter-exchange":"","dead-letter-routing-key":"{dead}"}}"#);
    set_policy(server, queue, &rules);
}

/// Messages for an exchange that have this routing key go to the queue.
pub(crate) fn bind(server: &PrivateRabbitmq, exchange: &str, key: &str, queue: &str) {
    let place = |kind: &str, name: &str| format!("rabbit_misc:r(<<\"/\">>, {kind}, <<\"{name}\">>)");
    let (from, to) = (place("exchange", exchange), place("queue", queue));
    let binding = format!("{{binding, {from}, <<\"{key}\">>, {to}, []}}");
    assert_eq!(
        control(server, &["eval", &format!("rabbit_binding:add({binding}, <<\"test\">>).")]).trim(),
        "ok"
    );
}

/// Puts a message on a queue whose body, or another section, is made of these bytes, whatever they are.
///
/// RabbitMQ 3 keeps messages as those of AMQP 0-9-1. What came by AMQP 1.0 has this type, and is passed on as it is.
pub(crate) fn put_bytes(server: &PrivateRabbitmq, queue: &str, section: Section, bytes: &[u8]) {
    let binary = |bytes: &[u8]| {
        let bytes: Vec<_> = bytes.iter().map(u8::to_string).collect();
        format!("<<{}>>", bytes.join(","))
    };
    let (headers, body) = match section {
        Section::Body => ("[]".to_owned(), binary(bytes)),
        Section::Header(name) => {
            (format!("[{{<<\"{name}\">>, longstr, {}}}]", binary(bytes)), binary(b"\0\x53\x75\xa0\x01x"))
        }
    };
    let publish = format!(
        "rabbit_basic:publish(rabbit_misc:r(<<\"/\">>, exchange, <<>>), <<\"{queue}\">>, \
         [{{type, <<\"amqp-1.0\">>}}, {{headers, {headers}}}], {body})."
    );
    let answer = control(server, &["eval", &publish]);
    assert!(answer.starts_with("{ok") || answer.trim() == "ok", "{answer}");
}

#[derive(Clone, Copy)]
pub(crate) enum Section {
    Body,
    /// The section that RabbitMQ keeps in this header.
    Header(&'static str),
}

/// How many messages of the queue wait, and how many are out and not settled.
pub(crate) fn counts(server: &PrivateRabbitmq, queue: &str) -> (u64, u64) {
    let listed = control(server, &["list_queues", "name", "messages_ready", "messages_unacknowledged"]);
    let line = listed.lines().find_map(|line| line.strip_prefix(queue)?.strip_prefix('\t'));
    let (ready, unsettled) = line.and_then(|line| line.split_once('\t')).unwrap();
    (ready.parse().unwrap(), unsettled.trim().parse().unwrap())
}
