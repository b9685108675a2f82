//! Every key of every broker, and what proves that it is not ignored.

/// The broker; a test of its crate, or of the suite that it runs, which fails when one of the keys is ignored; the keys,
/// each with lines that set it to another value than the default.
pub(crate) type Proof = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

pub(crate) const OF_SOURCES: &[Proof] = &[
    (
        "rabbitmq",
        "everything_put_is_applied_once_and_acknowledged",
        &[("url", "url = 'amqp://other'"), ("queue", "queue = 'other'")],
    ),
    (
        "rabbitmq",
        "user_password_and_virtual_host_are_used_and_errors_do_not_tell_them",
        &[("username", "username = 'u'"), ("password", "password = 'p'"), ("vhost", "vhost = 'v'")],
    ),
    (
        "rabbitmq",
        "a_certificate_is_enough_to_log_in",
        &[
            ("auth", "auth = 'external'\nurl = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
            ("tls.certificate", "url = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
            ("tls.key", "url = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
        ],
    ),
    (
        "rabbitmq",
        "tls_is_used_and_strangers_are_not_trusted",
        &[("tls.ca", "url = 'amqps://localhost'\ntls = { ca = 'c' }")],
    ),
    ("rabbitmq", "a_half_open_connection_of_a_source_is_noticed", &[("heartbeat", "heartbeat = '9s'")]),
    (
        "rabbitmq",
        "a_server_that_accepts_and_says_nothing_is_given_up_in_time",
        &[("connect_timeout", "connect_timeout = '9s'")],
    ),
    (
        "rabbitmq",
        "a_queue_that_is_not_there_is_named_with_the_remedy_and_created_when_told_to",
        &[("declare", "declare = 'quorum'")],
    ),
    (
        "rabbitmq",
        "what_is_rejected_goes_to_the_dead_letter_exchange_or_is_held",
        &[("prefetch", "prefetch = 9"), ("dead_letter_exchange", "dead_letter_exchange = true")],
    ),
    (
        "rabbitmq",
        "what_is_returned_comes_again_and_what_is_open_is_not_acknowledged_with_the_others",
        &[("return_after", "return_after = '9s'")],
    ),
    (
        "kafka",
        "a_source_is_read_from_toml",
        &[
            ("brokers", "brokers = 'other:9092'"),
            ("group", "group = 'g'"),
            ("start", "start = 'latest'"),
            ("prefetch_bytes", "prefetch_bytes = 9000"),
            ("properties", "properties = { 'check.crcs' = true }"),
        ],
    ),
    ("kafka", "everything_put_is_applied_once_and_acknowledged", &[("topic", "topic = ['a', 'b']")]),
    ("kafka", "a_slow_store_bounds_what_is_taken", &[("prefetch", "prefetch = 9")]),
    (
        "nats",
        "everything_put_is_applied_once_and_acknowledged",
        &[
            ("url", "url = 'nats://other'"),
            ("stream", "stream = 'other'"),
            ("consumer", "consumer = 'other'"),
        ],
    ),
    (
        "nats",
        "users_tokens_and_keys_are_let_in_and_others_are_not",
        &[
            ("auth.user", "auth = { user = 'u', password = 'p' }"),
            ("auth.password", "auth = { user = 'u', password = 'p' }"),
            ("auth.token", "auth = { token = 't' }"),
            ("auth.nkey", "auth = { nkey = 'n' }"),
        ],
    ),
    (
        "nats",
        "a_credentials_file_that_is_none_is_said",
        &[("auth.credentials", "auth = { credentials = 'f' }")],
    ),
    (
        "nats",
        "where_tls_is_required_a_server_without_it_is_refused",
        &[("tls.required", "tls = { required = true }")],
    ),
    ("nats", "tls_is_checked", &[("tls.ca", "tls = { ca = 'c' }")]),
    (
        "nats",
        "a_client_shows_its_certificate_and_begins_with_tls_where_asked_to",
        &[
            ("tls.certificate", "tls = { certificate = 'c', key = 'k' }"),
            ("tls.key", "tls = { certificate = 'c', key = 'k' }"),
            ("tls.first", "tls = { first = true }"),
        ],
    ),
    ("nats", "a_domain_is_asked_instead_of_the_account", &[("domain", "domain = 'd'")]),
    (
        "nats",
        "what_is_missing_is_created_when_asked_for",
        &[
            ("create", "create = true\nsubjects = ['a']"),
            ("subjects", "subjects = ['a']"),
            ("retention", "retention = 'work-queue'"),
            ("filter", "filter = 'a.b'"),
            ("prefetch", "prefetch = 9"),
        ],
    ),
    (
        "nats",
        "replicas_and_limits_of_a_consumer_are_those_asked_for",
        &[
            ("replicas", "replicas = 3"),
            ("ack_wait", "ack_wait = '9s'"),
            ("max_ack_pending", "max_ack_pending = 9"),
        ],
    ),
    ("nats", "a_source_holds_no_more_than_it_may", &[("prefetch_bytes", "prefetch_bytes = 9000")]),
    (
        "nats",
        "confirmed_acknowledgements_are_done_when_settle_returns",
        &[("confirm_acks", "confirm_acks = true")],
    ),
    (
        "nats",
        "returned_messages_come_again_and_rejected_ones_do_not",
        &[("return_delay", "return_delay = '9s'")],
    ),
    (
        "redis",
        "everything_put_is_applied_once_and_acknowledged",
        &[("url", "url = 'redis://other'"), ("stream", "stream = 'other'"), ("group", "group = 'other'")],
    ),
    ("redis", "tls_is_checked", &[("tls.ca", "url = 'rediss://localhost'\ntls = { ca = 'c' }")]),
    (
        "redis",
        "the_files_of_a_client_certificate_are_read",
        &[
            ("tls.certificate", "url = 'rediss://localhost'\ntls = { certificate = 'c', key = 'k' }"),
            ("tls.key", "url = 'rediss://localhost'\ntls = { certificate = 'c', key = 'k' }"),
        ],
    ),
    (
        "redis",
        "a_consumer_of_the_same_name_goes_on_where_the_last_one_died",
        &[("consumer", "consumer = 'other'")],
    ),
    ("redis", "what_is_missing_is_said_by_name_and_created_when_asked_for", &[("create", "create = true")]),
    ("redis", "no_more_than_prefetch_is_taken_from_the_stream", &[("prefetch", "prefetch = 9")]),
    (
        "redis",
        "what_a_dead_consumer_held_is_taken_over_whatever_the_cursor_says",
        &[("claim_after", "claim_after = '9s'")],
    ),
    ("redis", "the_payload_is_in_the_field_that_was_named", &[("payload_field", "payload_field = 'f'")]),
    ("mqtt", "everything_put_is_applied_once_and_acknowledged", &[("url", "url = 'mqtt://other'")]),
    (
        "mqtt",
        "only_who_knows_the_password_is_let_in",
        &[("username", "username = 'u'"), ("password", "username = 'u'\npassword = 'p'")],
    ),
    (
        "mqtt",
        "the_server_must_prove_who_it_is",
        &[("tls.ca", "url = 'mqtts://localhost'\ntls = { ca = 'c' }")],
    ),
    (
        "mqtt",
        "the_files_of_a_client_certificate_are_read",
        &[
            (
                "tls.certificate",
                "url = 'mqtts://localhost'\ntls = { ca = 'c', certificate = 'c', key = 'k' }",
            ),
            ("tls.key", "url = 'mqtts://localhost'\ntls = { ca = 'c', certificate = 'c', key = 'k' }"),
        ],
    ),
    ("mqtt", "what_comes_while_the_process_is_away_is_kept", &[("client_id", "client_id = 'other'")]),
    ("mqtt", "members_of_a_group_share_messages", &[("topic", "topic = ['a', 'b/#']")]),
    (
        "mqtt",
        "with_qos_2_nothing_is_lost_before_and_doubled_after_the_acknowledgement",
        &[("qos", "qos = 2")],
    ),
    (
        "mqtt",
        "the_server_is_told_how_long_to_keep_the_session_and_how_much_to_send_ahead",
        &[
            ("session_expiry", "session_expiry = '9s'"),
            ("prefetch", "prefetch = 9"),
            ("keep_alive", "keep_alive = '9s'"),
        ],
    ),
    ("mqtt", "connecting_takes_no_longer_than_it_may", &[("connect_timeout", "connect_timeout = '9s'")]),
    (
        "mqtt",
        "what_is_returned_comes_again_after_a_pause_and_what_is_rejected_is_not_lost",
        &[("return_after", "return_after = '9s'")],
    ),
    ("mqtt", "properties_of_the_packet_are_headers", &[("topic_header", "topic_header = 'h'")]),
    (
        "amqp1",
        "everything_put_is_applied_once_and_acknowledged",
        &[("url", "url = 'amqp://other'"), ("address", "address = 'other'")],
    ),
    (
        "amqp1",
        "only_who_knows_the_password_is_let_in",
        &[("username", "username = 'u'"), ("password", "username = 'u'\npassword = 'p'")],
    ),
    (
        "amqp1",
        "the_server_must_prove_who_it_is",
        &[("tls.ca", "url = 'amqps://localhost'\ntls = { ca = 'c' }")],
    ),
    (
        "amqp1",
        "the_files_of_a_client_certificate_are_read",
        &[
            ("tls.certificate", "url = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
            ("tls.key", "url = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
        ],
    ),
    (
        "amqp1",
        "the_server_is_told_who_we_are_and_whom_we_ask_for",
        &[("container_id", "container_id = 'c'"), ("hostname", "hostname = 'vhost:v'")],
    ),
    ("amqp1", "a_slow_store_bounds_what_is_taken", &[("prefetch", "prefetch = 9")]),
    (
        "amqp1",
        "what_is_returned_comes_again_after_a_pause_and_what_is_rejected_does_not",
        &[("return_after", "return_after = '9s'")],
    ),
    ("amqp1", "a_half_open_connection_of_a_source_is_noticed", &[("idle_timeout", "idle_timeout = '9s'")]),
    ("amqp1", "connecting_takes_no_longer_than_it_may", &[("connect_timeout", "connect_timeout = '9s'")]),
];

pub(crate) const OF_SINKS: &[Proof] = &[
    ("rabbitmq", "what_is_confirmed_is_there", &[("url", "url = 'amqp://other'")]),
    (
        "rabbitmq",
        "user_password_and_virtual_host_are_used_and_errors_do_not_tell_them",
        &[("username", "username = 'u'"), ("password", "password = 'p'"), ("vhost", "vhost = 'v'")],
    ),
    (
        "rabbitmq",
        "a_certificate_is_enough_to_log_in",
        &[
            ("auth", "auth = 'external'\nurl = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
            ("tls.certificate", "url = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
            ("tls.key", "url = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
        ],
    ),
    (
        "rabbitmq",
        "tls_is_used_and_strangers_are_not_trusted",
        &[("tls.ca", "url = 'amqps://localhost'\ntls = { ca = 'c' }")],
    ),
    ("rabbitmq", "a_sink_loses_nothing_to_broken_connections", &[("heartbeat", "heartbeat = '9s'")]),
    (
        "rabbitmq",
        "a_server_that_accepts_and_says_nothing_is_given_up_in_time",
        &[("connect_timeout", "connect_timeout = '9s'")],
    ),
    (
        "rabbitmq",
        "only_what_no_queue_takes_is_not_sent",
        &[("exchange", "exchange = 'e'"), ("mandatory", "mandatory = false")],
    ),
    (
        "rabbitmq",
        "messages_are_routed_by_kind_by_key_or_always_the_same",
        &[("routing_key", "routing_key = 'key'")],
    ),
    (
        "kafka",
        "a_sink_is_read_from_toml",
        &[("brokers", "brokers = 'other:9092'"), ("properties", "properties = { 'linger.ms' = 1 }")],
    ),
    ("kafka", "what_is_confirmed_is_there", &[("topic", "topic = 'other'")]),
    ("nats", "what_is_confirmed_is_there", &[("url", "url = 'nats://other'"), ("prefix", "prefix = 'p'")]),
    (
        "nats",
        "users_tokens_and_keys_are_let_in_and_others_are_not",
        &[
            ("auth.user", "auth = { user = 'u', password = 'p' }"),
            ("auth.password", "auth = { user = 'u', password = 'p' }"),
            ("auth.token", "auth = { token = 't' }"),
            ("auth.nkey", "auth = { nkey = 'n' }"),
        ],
    ),
    (
        "nats",
        "a_credentials_file_that_is_none_is_said",
        &[("auth.credentials", "auth = { credentials = 'f' }")],
    ),
    (
        "nats",
        "where_tls_is_required_a_server_without_it_is_refused",
        &[("tls.required", "tls = { required = true }")],
    ),
    ("nats", "tls_is_checked", &[("tls.ca", "tls = { ca = 'c' }")]),
    (
        "nats",
        "a_client_shows_its_certificate_and_begins_with_tls_where_asked_to",
        &[
            ("tls.certificate", "tls = { certificate = 'c', key = 'k' }"),
            ("tls.key", "tls = { certificate = 'c', key = 'k' }"),
            ("tls.first", "tls = { first = true }"),
        ],
    ),
    ("nats", "a_sink_with_a_subject_sends_everything_there", &[("subject", "subject = 's'")]),
    ("nats", "a_sink_says_what_a_stream_refused", &[("stream", "stream = 's'")]),
    ("nats", "a_confirmation_is_waited_for_as_long_as_the_timeout_says", &[("timeout", "timeout = '9s'")]),
    (
        "redis",
        "what_is_confirmed_is_there",
        &[("url", "url = 'redis://other'"), ("stream", "stream = 'other'")],
    ),
    ("redis", "tls_is_checked", &[("tls.ca", "url = 'rediss://localhost'\ntls = { ca = 'c' }")]),
    (
        "redis",
        "the_files_of_a_client_certificate_are_read",
        &[
            ("tls.certificate", "url = 'rediss://localhost'\ntls = { certificate = 'c', key = 'k' }"),
            ("tls.key", "url = 'rediss://localhost'\ntls = { certificate = 'c', key = 'k' }"),
        ],
    ),
    ("redis", "what_goes_nowhere_is_not_confirmed", &[("create", "create = false")]),
    ("redis", "a_stream_keeps_about_as_many_entries_as_its_sink_says", &[("max_length", "max_length = 9")]),
    ("redis", "a_confirmation_is_waited_for_as_long_as_the_timeout_says", &[("timeout", "timeout = '9s'")]),
    ("mqtt", "what_is_confirmed_is_there", &[("url", "url = 'mqtt://other'"), ("topic", "topic = 't'")]),
    (
        "mqtt",
        "only_who_knows_the_password_is_let_in",
        &[("username", "username = 'u'"), ("password", "username = 'u'\npassword = 'p'")],
    ),
    (
        "mqtt",
        "the_server_must_prove_who_it_is",
        &[("tls.ca", "url = 'mqtts://localhost'\ntls = { ca = 'c' }")],
    ),
    (
        "mqtt",
        "the_files_of_a_client_certificate_are_read",
        &[
            (
                "tls.certificate",
                "url = 'mqtts://localhost'\ntls = { ca = 'c', certificate = 'c', key = 'k' }",
            ),
            ("tls.key", "url = 'mqtts://localhost'\ntls = { ca = 'c', certificate = 'c', key = 'k' }"),
        ],
    ),
    (
        "mqtt",
        "a_message_carries_how_long_it_is_kept_and_the_server_knows_who_sends_it",
        &[
            ("client_id", "client_id = 'c'"),
            ("message_expiry", "message_expiry = '9s'"),
            ("retain", "retain = true"),
        ],
    ),
    (
        "mqtt",
        "without_subscribers_a_message_counts_as_sent_only_where_asked_for",
        &[("require_subscribers", "require_subscribers = false")],
    ),
    (
        "mqtt",
        "who_subscribes_with_qos_2_gets_qos_2_and_each_message_once",
        &[("qos", "qos = 2\nrequire_subscribers = false")],
    ),
    ("mqtt", "a_sink_loses_nothing_to_broken_connections", &[("keep_alive", "keep_alive = '9s'")]),
    ("mqtt", "connecting_takes_no_longer_than_it_may", &[("connect_timeout", "connect_timeout = '9s'")]),
    (
        "amqp1",
        "what_is_confirmed_is_there",
        &[("url", "url = 'amqp://other'"), ("address", "address = 'other'")],
    ),
    (
        "amqp1",
        "only_who_knows_the_password_is_let_in",
        &[("username", "username = 'u'"), ("password", "username = 'u'\npassword = 'p'")],
    ),
    (
        "amqp1",
        "the_server_must_prove_who_it_is",
        &[("tls.ca", "url = 'amqps://localhost'\ntls = { ca = 'c' }")],
    ),
    (
        "amqp1",
        "the_files_of_a_client_certificate_are_read",
        &[
            ("tls.certificate", "url = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
            ("tls.key", "url = 'amqps://localhost'\ntls = { certificate = 'c', key = 'k' }"),
        ],
    ),
    (
        "amqp1",
        "the_server_is_told_who_we_are_and_whom_we_ask_for",
        &[("container_id", "container_id = 'c'"), ("hostname", "hostname = 'vhost:v'")],
    ),
    ("amqp1", "a_sink_loses_nothing_to_broken_connections", &[("idle_timeout", "idle_timeout = '9s'")]),
    ("amqp1", "connecting_takes_no_longer_than_it_may", &[("connect_timeout", "connect_timeout = '9s'")]),
];
