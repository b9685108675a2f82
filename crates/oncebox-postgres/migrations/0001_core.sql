-- 0001_core: the log, its cursors, deliveries with a row of their own, the outbox and the counters.
-- Times are microseconds since 1970 in UTC by this database's clock. A 16-byte identity is kept as a uuid:
-- fixed length, compared as bytes.

-- The last seq given out. Receivers lock this row, so seq order is commit order.
create table {schema}.head (
    one boolean primary key default true check (one),
    seq bigint not null
) with (fillfactor = 10);
insert into {schema}.head (seq) values (0);

-- Every message id that still blocks duplicates. Rows are never updated; purge sweeps them page by page.
create table {schema}.seen (
    identity uuid primary key,
    fingerprint uuid not null,
    seen_at bigint not null,
    seq bigint,
    lane smallint
);

-- Received messages, append-only.
create table {schema}.log (
    seq bigint not null,
    received_at bigint not null,
    not_before bigint,
    identity uuid not null,
    lane smallint not null,
    scope text collate "C" not null,
    id text collate "C" not null,
    kind text collate "C" not null,
    key text collate "C",
    headers text not null,
    payload bytea not null,
    primary key (lane, seq)
);

create table {schema}.handler (
    name text collate "C" primary key,
    kinds text not null,
    ordered boolean not null,
    paused boolean not null default false,
    registered_at bigint not null
);

-- Half of each page stays free, so that moving a cursor never touches the index.
create table {schema}.cursor (
    handler text collate "C" not null,
    lane smallint not null,
    position bigint not null,
    token bigint,
    started_at bigint not null default 0,
    suspects integer not null default 0,
    primary key (handler, lane)
) with (fillfactor = 50);

-- state: 0 ready (leased while token is set), 1 held, 2 scheduled, 3 dead, 4 discarded.
-- due_at of a leased row is the end of its lease, so a lapsed lease is simply due again.
create table {schema}.delivery (
    id bigint generated always as identity primary key,
    handler text collate "C" not null,
    identity uuid not null,
    scope text collate "C" not null,
    message_id text collate "C" not null,
    kind text collate "C" not null,
    key text collate "C",
    headers text not null,
    payload bytea not null,
    not_before bigint,
    received_at bigint not null,
    state smallint not null,
    attempts integer not null,
    due_at bigint not null,
    token bigint,
    last_error text,
    unique (identity, handler)
);
create index delivery_due on {schema}.delivery (handler, due_at, id) where state in (0, 2);
create index delivery_key on {schema}.delivery (handler, key, id) where key is not null and state in (0, 1, 2);
create index delivery_state on {schema}.delivery (handler, state, id);

-- Failed attempts; they outlive the delivery's row.
create table {schema}.attempt (
    id bigint generated always as identity primary key,
    identity uuid not null,
    handler text collate "C" not null,
    attempt integer not null,
    at bigint not null,
    error text not null
);
create index attempt_identity on {schema}.attempt (identity, handler);

create table {schema}.conflict (
    identity uuid not null,
    fingerprint uuid not null,
    scope text collate "C" not null,
    message_id text collate "C" not null,
    kind text collate "C" not null,
    key text collate "C",
    headers text not null,
    payload bytea not null,
    not_before bigint,
    received_at bigint not null,
    primary key (identity, fingerprint)
);
create index conflict_received_at on {schema}.conflict (received_at);

create table {schema}.outbox (
    seq bigint generated always as identity primary key,
    sink text collate "C" not null,
    lane smallint not null,
    scope text collate "C" not null,
    id text collate "C" not null,
    kind text collate "C" not null,
    key text collate "C",
    headers text not null,
    payload bytea not null,
    not_before bigint,
    due_at bigint not null,
    created_at bigint not null,
    attempts integer not null default 0,
    dead boolean not null default false,
    last_error text
);
create index outbox_lane on {schema}.outbox (sink, lane, seq) where not dead;
create index outbox_failed on {schema}.outbox (sink, key, seq) where attempts > 0 and not dead;
create index outbox_dead on {schema}.outbox (sink, seq) where dead;

create table {schema}.relay (
    sink text collate "C" not null,
    lane smallint not null,
    token bigint,
    leased_until bigint not null default 0,
    primary key (sink, lane)
) with (fillfactor = 50);

-- minute 0 is the running total.
create table {schema}.counter (
    handler text collate "C" not null,
    name text collate "C" not null,
    minute bigint not null,
    value bigint not null,
    primary key (handler, name, minute)
) with (fillfactor = 50);

-- Where the next purge goes on in tables that it walks instead of indexing them by time.
create table {schema}.sweep (
    name text collate "C" primary key,
    position bigint not null
);
insert into {schema}.sweep (name, position) values ('seen', 0), ('attempt', 0), ('delivery', 0);
