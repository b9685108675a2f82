//! The configuration: what is read, what is refused, and where the message says it stands.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use oncebox_server::Config;
use oncebox_server::config::{
    Action, DEFAULTS, Encoding, LogFormat, Scheme, SinkType, SourceType, StoreType,
};

fn environment(name: &str) -> Option<String> {
    match name {
        "SECRET" | "SHOP_SECRET" | "SHOP_SECRET_OLD" | "CRM_SECRET" => {
            Some("s3cret-from-the-environment".to_owned())
        }
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

fn parse(text: &str) -> Config {
    Config::parse("x.toml", text, &environment).unwrap_or_else(|error| panic!("{error}"))
}

/// The first line of each problem.
fn problems(text: &str) -> Vec<String> {
    let error = Config::parse("x.toml", text, &environment).expect_err(text);
    error.problems.iter().map(|problem| problem.to_string().lines().next().unwrap().to_owned()).collect()
}

#[test]
fn the_compiled_in_file_is_a_configuration_like_any_other() {
    let own = Config::parse("config.default.toml", DEFAULTS, &|_| None).unwrap();
    assert_eq!(format!("{own:?}"), format!("{:?}", Config::default_config()), "and changes nothing");
    assert_eq!(own.store.database, StoreType::Sqlite);
    assert_eq!(own.http.listen.to_string(), "127.0.0.1:8420");
    assert!(own.handlers.is_empty() && own.sinks.is_empty());
    let [source] = &own.sources[..] else { panic!("one source") };
    assert_eq!(source.name, "default");
}

/// A section, a key, another value than the default, and a test of the command that fails when the key is ignored, for
/// every key of the compiled-in file but those of brokers.
const CHANGES: &[(&str, &str, &str, &str)] = &[
    ("store", "url", "\"postgres://localhost/x\"", "sql_gets_every_parameter_on_postgres"),
    ("store", "schema", "\"mine\"", "schema_is_how_tables_begin_and_migrate_says_who_makes_them"),
    ("store", "connections", "3", "connections_is_the_most_there_are_to_the_database"),
    ("store", "connect_timeout", "\"3s\"", "connect_timeout_is_how_long_a_database_may_take"),
    ("store", "keep", "\"3d\"", "keep_is_how_long_an_id_blocks_duplicates"),
    ("store", "keep_payload", "\"4d\"", "keep_payload_is_how_long_a_message_that_is_done_stays_readable"),
    ("store", "max_payload", "\"1MiB\"", "one_message_gets_the_status_of_the_contract"),
    ("store", "migrate", "false", "schema_is_how_tables_begin_and_migrate_says_who_makes_them"),
    ("store", "behind_pooler", "true", "sql_gets_every_parameter_through_a_pooler"),
    ("store", "relaxed_durability", "true", "relaxed_durability_accepts_what_can_lose_messages"),
    ("http", "listen", "\"127.0.0.1:1\"", "with_a_token_other_machines_may_be_listened_to"),
    ("http", "token", "\"0123456789012345678901234\"", "with_a_token_other_machines_may_be_listened_to"),
    ("http", "max_body", "\"1MiB\"", "a_body_without_a_length_is_cut_at_the_limit"),
    ("http", "max_in_flight", "\"200MiB\"", "bodies_beyond_the_memory_limit_get_503_with_retry_after"),
    ("http", "max_connections", "5", "too_many_connections_get_503_at_once"),
    ("http", "max_headers", "7", "odd_requests_are_refused_and_nothing_breaks"),
    ("http", "max_header_size", "\"8KiB\"", "odd_requests_are_refused_and_nothing_breaks"),
    ("http", "header_timeout", "\"1s\"", "slow_clients_are_cut_off_and_others_do_not_wait"),
    ("http", "body_timeout", "\"1s\"", "slow_clients_are_cut_off_and_others_do_not_wait"),
    ("http", "write_timeout", "\"1s\"", "listeners_that_never_read_are_ended_and_their_places_are_free"),
    ("http", "max_wrong_tokens", "3", "an_address_that_guesses_has_to_wait_and_no_other"),
    ("http", "json_depth", "3", "deep_json_is_refused_and_the_depth_is_configured"),
    ("http", "retry_after", "\"7s\"", "bodies_beyond_the_memory_limit_get_503_with_retry_after"),
    ("run", "concurrency", "9", "concurrency_of_the_runner_is_for_handlers_that_say_nothing"),
    ("run", "poll", "\"9s\"", "poll_is_how_often_a_process_looks_without_a_hint"),
    ("run", "shutdown", "\"9s\"", "the_time_for_stopping_is_limited_and_a_second_signal_ends_at_once"),
    ("health", "max_lag", "\"9s\"", "ready_tells_when_messages_wait_too_long_or_the_store_is_gone"),
    ("health", "timeout", "\"9s\"", "a_store_that_takes_longer_than_the_time_for_it_is_not_ready"),
    ("telemetry", "otlp", "\"http://127.0.0.1:4318\"", "a_message_is_one_trace_from_its_sender_to_its_sink"),
    ("telemetry", "service_name", "\"shop\"", "a_message_is_one_trace_from_its_sender_to_its_sink"),
    ("telemetry", "sample", "0.5", "a_trace_begins_here_when_none_came_and_a_mark_that_came_is_kept"),
    ("log", "format", "\"json\"", "nobody_else_writes_lines_into_the_log"),
    ("log", "level", "\"warn\"", "level_is_what_is_logged_and_what_is_not"),
    ("source.default", "type", "\"http\"", "serve_works_with_no_configuration_at_all"),
    ("defaults.source.http", "id", "\"hash\"", "one_message_gets_the_status_of_the_contract"),
    ("defaults.source.http", "kind", "\"k\"", "one_message_gets_the_status_of_the_contract"),
    ("defaults.source.http", "key", "\"json:/key\"", "one_message_gets_the_status_of_the_contract"),
    ("defaults.source.http", "scope", "\"other\"", "headers_are_stored_as_configured_and_credentials_never"),
    ("defaults.source.http", "token", "\"always\"", "a_source_wants_a_token_as_its_section_says"),
    ("defaults.source.http", "rate", "\"1/s\"", "a_rate_limit_answers_429_with_retry_after"),
    ("defaults.source.http", "keep_headers", "[]", "headers_are_stored_as_configured_and_credentials_never"),
    (
        "defaults.source.http",
        "verify",
        "{ scheme = \"github\", secret = \"x\" }",
        "signatures_are_checked_and_the_secret_can_be_changed",
    ),
    ("defaults.handler", "ordered", "true", "ordered_handlers_keep_the_order_of_a_key_even_behind_a_failure"),
    ("defaults.handler", "batch", "7", "a_paused_handler_waits_and_batch_and_from_start_are_kept"),
    ("defaults.handler", "max_attempts", "7", "sql_that_fails_is_tried_again_with_backoff_and_then_dead"),
    (
        "defaults.handler",
        "backoff",
        "{ first = \"2s\" }",
        "sql_that_fails_is_tried_again_with_backoff_and_then_dead",
    ),
    ("defaults.handler", "timeout", "\"7s\"", "a_call_takes_no_longer_than_its_handler_may"),
    ("defaults.handler", "concurrency", "7", "concurrency_is_limited_per_handler"),
    ("defaults.handler", "rate", "\"7/s\"", "a_rate_limit_spreads_the_calls_of_sql_and_http"),
    ("defaults.handler", "paused", "true", "a_paused_handler_waits_and_batch_and_from_start_are_kept"),
    ("defaults.handler", "formerly", "[\"old\"]", "a_paused_handler_waits_and_batch_and_from_start_are_kept"),
    ("defaults.handler", "from_start", "true", "a_paused_handler_waits_and_batch_and_from_start_are_kept"),
    ("defaults.handler", "headers", "{ x-a = \"b\" }", "http_posts_with_id_signature_and_trace"),
    ("defaults.handler", "max_response", "\"7B\"", "http_answers_decide_between_done_retry_and_dead"),
    (
        "defaults.handler",
        "breaker",
        "{ failures = 7 }",
        "an_open_breaker_makes_messages_wait_without_counting_attempts",
    ),
    (
        "defaults.sink.http",
        "headers",
        "{ x-a = \"b\" }",
        "a_sink_gets_what_a_handler_forwards_through_the_outbox",
    ),
    ("defaults.sink.http", "timeout", "\"7s\"", "a_sink_waits_and_tries_again_as_it_is_told"),
    ("defaults.sink.http", "max_attempts", "7", "a_sink_waits_and_tries_again_as_it_is_told"),
    ("defaults.sink.http", "backoff", "{ max = \"2h\" }", "a_sink_waits_and_tries_again_as_it_is_told"),
    ("defaults.sink.http", "batch", "7", "batch_of_a_sink_is_how_many_are_sent_at_once"),
    ("defaults.sink.http", "max_response", "\"7B\"", "a_sink_waits_and_tries_again_as_it_is_told"),
    ("defaults.source.broker", "inline", "true", "the_relay_of_a_broker_and_inline_are_as_they_are_told"),
    (
        "defaults.sink.broker",
        "relay",
        "{ batch = 7 }",
        "the_relay_of_a_broker_and_inline_are_as_they_are_told",
    ),
];

fn tests_of_the_command() -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../oncebox-cli/tests");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

const BROKERS: [&str; 6] = [".rabbitmq", ".kafka", ".nats", ".redis", ".mqtt", ".amqp1"];

/// Whatever is in the reference changes something when it is set, and whatever can be set is in the reference.
#[test]
fn every_key_of_the_reference_has_an_effect() {
    let rest = "[handler.h]\non = [\"*\"]\nhttp = \"http://127.0.0.1/\"\n[sink.s]\ntype = \"http\"\nurl = \"http://127.0.0.1/\"\n";
    let plain = format!("{:?}", parse(rest));
    let tests = tests_of_the_command();
    for (section, key, value, test) in CHANGES {
        assert!(tests.contains(&format!("fn {test}()")), "[{section}] {key}: there is no test `{test}`");
        if *key == "type" {
            continue;
        }
        let is_broker = section.ends_with(".broker");
        if is_broker && !cfg!(feature = "nats") || *key == "otlp" && !cfg!(feature = "otlp") {
            continue;
        }
        let broker = "[source.b]\ntype = \"nats\"\nurl = \"nats://localhost\"\nstream = \"S\"\nconsumer = \"c\"\n\
                      [sink.b]\ntype = \"nats\"\nurl = \"nats://localhost\"\nprefix = \"events\"\n";
        let rest = if is_broker { &format!("{rest}{broker}") } else { rest };
        let plain = if is_broker { format!("{:?}", parse(rest)) } else { plain.clone() };
        // A pooler only stands before Postgres.
        let store = if *key == "behind_pooler" { "url = \"postgres://localhost/x\"\n" } else { "" };
        let base =
            if store.is_empty() { plain } else { format!("{:?}", parse(&format!("[store]\n{store}{rest}"))) };
        let changed = format!("{:?}", parse(&format!("[{section}]\n{store}{key} = {value}\n{rest}")));
        assert_ne!(changed, base, "[{section}] {key}");
    }
    let mut section = "";
    let mut seen = 0;
    for line in DEFAULTS.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.split(']').next().unwrap();
        // Those of the brokers are in `reference.rs`.
        } else if BROKERS.iter().any(|broker| section.ends_with(broker)) {
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            assert!(
                CHANGES.iter().any(|(own, name, ..)| *own == section && *name == key),
                "[{section}] {key} is not tested"
            );
            seen += 1;
        }
    }
    assert_eq!(seen, CHANGES.len());
}

#[test]
fn the_example_of_the_design_is_read() {
    let config = parse(
        r#"
[store]
url = "sqlite:shop.db"
keep = "14d"
[http]
listen = "127.0.0.1:8420"
token = "${SECRET}"
[source.shop]
type = "http"
kind = "json:/type"
id = "header:webhook-id"
verify = { scheme = "standard-webhooks", secret = ["${SECRET}", "old"], tolerance = "1m" }
[handler.charge-card]
on = ["order.placed"]
sql = "select charge_card(:id, :payload)"
ordered = true
max_attempts = 12
backoff = { first = "1s", max = "1h" }
[handler.notify-crm]
on = ["order.*"]
http = "https://crm.internal/events"
timeout = "10s"
concurrency = 16
secret = "${SECRET}"
[handler.forward]
on = ["*"]
sink = "events"
[sink.events]
type = "http"
url = "https://events.internal/"
"#,
    );
    let SourceType::Http(shop) = &config.sources[0].source else { panic!("http") };
    let verify = shop.verify.as_ref().unwrap();
    assert_eq!((&verify.scheme, verify.secrets.len()), (&Scheme::StandardWebhooks, 2));
    assert_eq!(verify.tolerance, Duration::from_secs(60));
    assert!(verify.secrets[0].matches(b"s3cret-from-the-environment"));
    let [charge, forward, notify] = &config.handlers[..] else { panic!("three handlers") };
    assert!(matches!(&charge.action, Action::Sql(statements) if statements.len() == 1) && charge.ordered);
    assert!(matches!(&forward.action, Action::Sink(sink) if sink == "events"));
    assert!(matches!(&notify.action, Action::Http(http) if http.secrets.len() == 1));
    assert_eq!((notify.concurrency, notify.timeout), (Some(16), Duration::from_secs(10)));
    assert!(
        matches!(&config.sinks[0].sink, SinkType::Http(http) if http.url.host_str() == Some("events.internal"))
    );
    assert!(!format!("{config:?}").contains("s3cret"), "secrets are not shown");
}

#[test]
fn what_is_wrong_is_named_with_its_place_and_the_nearest_word() {
    for (text, expected) in [
        ("[htttp]\n", "x.toml:1:2: unknown section `htttp`; did you mean `http`?"),
        ("a = 1\n", "x.toml:1:1: unknown section `a`; use one of: store, http, run,"),
        ("http = 1\n", "x.toml:1:1: `http` is a whole number; write a section [http]"),
        ("[http]\nlisen = \"1\"\n", "x.toml:2:1: unknown key `lisen` in [http]; did you mean `listen`?"),
        ("[http]\nlisten = \"localhost\"\n", "x.toml:2:1: `localhost` is no address; write IP:PORT"),
        (
            "[http]\nlisten = \"0.0.0.0:80\"\n",
            "x.toml:2:1: `0.0.0.0:80` can be reached from other machines, so `token`",
        ),
        (
            "[http]\nlisten = \"0.0.0.0:80\"\ntoken = \"0123456789012345678901234\"\n\
             [source.a]\ntype = \"http\"\ntoken = \"never\"\n",
            "x.toml:4:9: source `a` can be reached from other machines and proves nothing",
        ),
        (
            "[source.a]\ntype = \"http\"\ntoken = \"allways\"\n",
            "x.toml:3:9: `token` cannot be `allways`; did you mean `always`?",
        ),
        ("[telemetry]\notlp = \"localhost:4318\"\n", "x.toml:2:1: `otlp` is no address of a collector"),
        ("[telemetry]\notlp = \"http://u:pw@c:4318\"\n", "x.toml:2:1: `otlp` is no address of a collector"),
        ("[telemetry]\nsample = 1.5\n", "x.toml:2:10: `sample` is 1.5; it goes from 0.0 to 1.0"),
        ("[telemetry]\nservice_name = \"\"\n", "x.toml:2:1: `service_name` is empty"),
        ("[http]\ntoken = \"short\"\n", "x.toml:2:1: `token` is shorter than 24 characters"),
        ("[http]\nmax_body = \"1GiB\"\n", "x.toml:1:2: `max_in_flight` is less than `max_body`"),
        (
            "[http]\nmax_body = 5\n",
            "x.toml:2:12: `max_body` is a number without a unit; write \"5\" with one",
        ),
        (
            "[http]\nmax_body = \"5MB\"\n",
            "x.toml:2:12: `5MB`: a size is a whole number and a unit (B, KiB, MiB, GiB); did you mean `5MiB`?",
        ),
        ("[http]\njson_depth = 9999\n", "x.toml:2:14: `json_depth` is 9999; it goes from 1 to 120"),
        ("[http]\njson_depth = \"x\"\n", "x.toml:2:1: `json_depth` is a text; it must be a whole number"),
        (
            "[store]\nkeep = \"14days\"\n",
            "x.toml:2:8: `14days`: a length of time is a whole number and a unit (ms, s, m, h, d, w); did you mean `14d`?",
        ),
        ("[store]\nkeep = 14\n", "x.toml:2:8: `keep` is a number without a unit"),
        (
            "[store]\nurl = \"oracle:x\"\n",
            "x.toml:2:1: the store's address begins with `oracle:`; use sqlite:FILE",
        ),
        ("[store]\nmigrate = \"yes\"\n", "x.toml:2:1: `migrate` is a text; it must be true or false"),
        (
            "[store]\nbehind_pooler = true\n",
            "x.toml:2:1: `behind_pooler` is for Postgres; this store is SQLite",
        ),
        ("[store]\nurl = \"${NOT_SET}\"\n", "x.toml:2:1: the environment variable `NOT_SET` is not set"),
        ("[store]\nurl = \"${NOT_CLOSED\"\n", "x.toml:2:1: `${` without `}`"),
        ("[log]\nlevel = \"inof\"\n", "x.toml:2:9: `level` cannot be `inof`; did you mean `info`?"),
        ("[source.a]\n", "x.toml:1:9: [source.a] has no `type`; add it"),
        ("[source.a]\ntype = \"htp\"\n", "x.toml:1:9: unknown source type `htp`; did you mean `http`?"),
        (
            "[source.a]\ntype = \"mqtt\"\n",
            "x.toml:1:9: source type `mqtt` is not in this build of oncebox; build it with `--features mqtt`",
        ),
        ("[source.\"a b\"]\ntype = \"http\"\n", "x.toml:1:9: source name `a b`: use 1 to 100 letters"),
        (
            "[source.a]\ntype = \"http\"\nid = \"heder:x\"\n",
            "x.toml:3:1: `id`: `heder:x` is no place to read from; use property:NAME, header:NAME",
        ),
        ("[source.a]\ntype = \"http\"\nid = \"property:x\"\n", "x.toml:2:1: `property:x` is for brokers"),
        (
            "[source.a]\ntype = \"http\"\nverify = { scheme = \"github\" }\n",
            "x.toml:3:1: `verify` has no `secret`; add it",
        ),
        (
            "[source.a]\ntype = \"http\"\nverify = { secret = \"x\" }\n",
            "x.toml:3:1: `verify` has a `secret` and no `scheme`",
        ),
        (
            "[source.a]\ntype = \"http\"\nverify = { scheme = \"git\", secret = \"x\" }\n",
            "x.toml:3:21: `scheme` cannot be `git`; use one of: none, standard-webhooks",
        ),
        (
            "[source.a]\ntype = \"http\"\nverify = { scheme = \"github\", secret = \"${EMPTY}\" }\n",
            "x.toml:3:31: `secret` is empty",
        ),
        (
            "[source.a]\ntype = \"http\"\nverify = { scheme = \"github\", secret = \"x\", header = \"y\" }\n",
            "x.toml:3:45: `header` is for `scheme = \"hmac-sha256\"`",
        ),
        (
            "[source.a]\ntype = \"http\"\nverify = { scheme = \"standard-webhooks\", secret = \"whsec_*\" }\n",
            "x.toml:3:1: a secret of `verify` begins with `whsec_`",
        ),
        (
            "[source.a]\ntype = \"http\"\nrate = \"5/x\"\n",
            "x.toml:3:8: `5/x`: a rate is a whole number above zero per s, m, h or d",
        ),
        ("[handler.a]\nsql = \"select 1\"\n", "x.toml:1:10: the handler has no `on`"),
        ("[handler.a]\non = []\nsql = \"select 1\"\n", "x.toml:2:1: `on` names no kind"),
        ("[handler.a]\non = [\"a*b\"]\nsql = \"select 1\"\n", "x.toml:2:1: kind pattern `a*b` has a `*`"),
        (
            "[handler.a]\non = [\"*\"]\n",
            "x.toml:1:10: handler `a` does nothing; give it one of sql, http and sink",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsql = \"select 1\"\nhttp = \"http://x/\"\n",
            "x.toml:4:1: handler `a` has sql and http; keep one of them",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsql = \"select :idd\"\n",
            "x.toml:3:1: `sql` has an unknown parameter `:idd`; did you mean `id`?",
        ),
        ("[handler.a]\non = [\"*\"]\nsql = \"commit\"\n", "x.toml:3:1: `sql` begins with `commit`"),
        ("[handler.a]\non = [\"*\"]\nsql = [1]\n", "x.toml:3:8: `sql` is a whole number; it must be a text"),
        (
            "[handler.a]\non = [\"*\"]\nhttp = \"crm.internal\"\n",
            "x.toml:3:1: `http` is no address to send to: relative URL without a base",
        ),
        (
            "[handler.a]\non = [\"*\"]\nhttp = \"ftp://crm/\"\n",
            "x.toml:3:1: `http` is no address to send to: it begins with `ftp:`",
        ),
        (
            "[handler.a]\non = [\"*\"]\nhttp = \"http://169.254.169.254/\"\n",
            "x.toml:3:1: `http` is no address to send to: it is a link-local",
        ),
        (
            "[handler.a]\non = [\"*\"]\nhttp = \"http://u:p@crm/\"\n",
            "x.toml:3:1: `http` is no address to send to: it holds a user or password",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsink = \"event\"\n[sink.events]\ntype = \"http\"\nurl = \"http://x/\"\n",
            "x.toml:3:1: there is no sink `event`; did you mean `events`?",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsink = \"event\"\n",
            "x.toml:3:1: there is no sink `event`; add a section [sink.NAME]",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsql = \"select 1\"\nsecret = \"x\"\n",
            "x.toml:4:1: `secret` is for handlers with `http`",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsql = \"select 1\"\nmax_attempt = 3\n",
            "x.toml:4:1: unknown key `max_attempt` in [handler.a]; did you mean `max_attempts`?",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsql = \"select 1\"\nbackoff = { frist = \"1s\" }\n",
            "x.toml:4:13: unknown key `frist` in [handler.a.backoff]; did you mean `first`?",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsql = \"select 1\"\nbackoff = { first = \"2h\" }\n",
            "x.toml:4:1: `backoff`: `first` is longer than `max`",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsql = \"select 1\"\nbackoff = \"1s\"\n",
            "x.toml:4:1: `backoff` is a text; it must be a table",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsql = \"select 1\"\nformerly = [\"a\"]\n",
            "x.toml:4:1: `a` is the name of two handlers",
        ),
        (
            "[handler.a]\non = [\"*\"]\nsql = \"select 1\"\ntimeout = \"0s\"\n",
            "x.toml:4:1: `timeout` must be longer than nothing",
        ),
        (
            "[handler.a]\non = [\"*\"]\nhttp = \"http://x/\"\nheaders = { host = \"y\" }\n",
            "x.toml:4:1: header `host` is set by Oncebox",
        ),
        (
            "[handler.a]\non = [\"*\"]\nhttp = \"http://x/\"\nheaders = { \"x y\" = \"z\" }\n",
            "x.toml:4:1: header `x y` has a name or value that HTTP does not allow",
        ),
        (
            "[handler.a]\n[handler.b]\n[handler.a]\n",
            "x.toml:3:10: handler `a` is defined twice; give one of them another name",
        ),
        (
            "[http]\nlisten = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:2\"\n",
            "x.toml:3:1: key `listen` is written twice",
        ),
        ("[http\n", "x.toml:1:6:"),
        ("[sink.a]\ntype = \"http\"\n", "x.toml:1:7: [sink.a] has no `url`; add it"),
        (
            "[sink.a]\ntype = \"http\"\nurl = \"http://x/\"\ntimeout = \"1m\"\n",
            "x.toml:4:1: `timeout` of a sink is at most 25s",
        ),
        ("[sink.a]\ntype = \"kafka\"\n", "x.toml:1:7: sink type `kafka` is not in this build"),
        (
            "[defaults.handlers]\n",
            "x.toml:1:11: unknown section `defaults.handlers`; did you mean `handler`?",
        ),
        (
            "[defaults.handler]\nordred = true\n",
            "x.toml:2:1: unknown key `ordred` in [defaults.handler]; did you mean `ordered`?",
        ),
        ("[defaults.handler]\nsql = \"select 1\"\n", "x.toml:2:1: `sql` belongs to one handler"),
        (
            "[defaults.source.http]\nidd = \"hash\"\n",
            "x.toml:2:1: unknown key `idd` in [defaults.source.http]; did you mean `id`?",
        ),
        (
            "[defaults.sink.kafka]\ntopik = \"t\"\n",
            "x.toml:2:1: unknown key `topik` in [defaults.sink.kafka]; did you mean `topic`?",
        ),
        ("[defaults.sink.kafkaa]\n", "x.toml:1:16: unknown sink type `kafkaa`; did you mean `kafka`?"),
    ] {
        if cfg!(feature = "mqtt") && expected.contains("is not in this build") {
            continue;
        }
        let found = problems(text);
        assert!(
            found.iter().any(|problem| problem.starts_with(expected)),
            "{text}\nexpected: {expected}\nfound: {found:#?}"
        );
    }
}

#[test]
fn all_problems_are_told_at_once_in_the_order_of_the_file() {
    let found = problems("[http]\nlisen = 1\n[handler.a]\nsqll = 1\n[store]\nkeep = 1\n");
    let places: Vec<&str> = found.iter().map(|problem| &problem[..9]).collect();
    assert_eq!(places, ["x.toml:2:", "x.toml:3:", "x.toml:3:", "x.toml:4:", "x.toml:6:"], "{found:#?}");
}

#[test]
fn the_file_may_set_defaults_for_all_of_a_sort() {
    let config = parse(
        "[defaults.handler]\ntimeout = \"7s\"\nbackoff = { first = \"5s\" }\n[defaults.source.http]\nid = \"hash\"\n\
         [handler.a]\non = [\"*\"]\nsql = \"select 1\"\n[handler.b]\non = [\"*\"]\nsql = \"select 1\"\ntimeout = \"9s\"\nbackoff = { max = \"6s\" }\n\
         [source.s]\ntype = \"http\"\n",
    );
    assert_eq!(config.handlers[0].timeout, Duration::from_secs(7));
    assert_eq!(config.handlers[1].timeout, Duration::from_secs(9));
    assert_eq!(format!("{:?}", config.handlers[1].backoff), "Backoff { first: 5s, max: 6s }");
    let SourceType::Http(source) = &config.sources[0].source else { panic!("http") };
    assert!(format!("{:?}", source.mapping).contains("Hash"));
}

/// An http source on an address of the network proves where its messages come from.
#[test]
fn a_source_that_proves_nothing_is_for_this_machine_only() {
    let open =
        "[http]\ntoken = \"0123456789012345678901234\"\n[source.a]\ntype = \"http\"\ntoken = \"never\"\n";
    let address = "0.0.0.0:80".parse().unwrap();
    let refused = parse(open).listen_on(address).unwrap_err();
    assert!(refused.contains("source `a` can be reached from other machines"), "{refused}");
    assert!(parse(open).listen_on("127.0.0.1:80".parse().unwrap()).is_ok());
    let signed = format!("{open}verify = {{ scheme = \"github\", secret = \"x\" }}\n");
    assert!(parse(&signed).listen_on(address).is_ok());
}

#[test]
fn plain_signatures_and_log_words_are_read() {
    let config = parse(
        "[log]\nformat = \"human\"\n[source.s]\ntype = \"http\"\nscope = \"shared\"\n\
         verify = { scheme = \"hmac-sha256\", secret = \"$${x}\", header = \"x-sig\", prefix = \"v0=\", encoding = \"base64\" }\n",
    );
    assert_eq!(config.log.format, LogFormat::Human);
    let SourceType::Http(source) = &config.sources[0].source else { panic!("http") };
    assert_eq!(source.scope, "shared");
    let verify = source.verify.as_ref().unwrap();
    assert!(verify.secrets[0].matches(b"${x}"), "`$$` before a brace is the text itself");
    let expected =
        Scheme::Hmac { header: "x-sig".to_owned(), prefix: "v0=".to_owned(), encoding: Encoding::Base64 };
    assert_eq!(verify.scheme, expected);
}

#[test]
fn the_example_of_the_guide_is_read() {
    let config = parse(include_str!("../../../examples/service/oncebox.toml"));
    assert_eq!((config.sources.len(), config.handlers.len(), config.sinks.len()), (1, 3, 1));
}
