-- 0001_core.sql: the tables of an inbox and an outbox.
-- Times (`*_at`) are whole microseconds since 1970 in UTC. Text is compared byte by byte (BINARY).

-- The last number given to a message in the log.
create table {prefix}head (
    one integer not null primary key check (one = 1),
    seq integer not null
) strict;

insert into {prefix}head (one, seq) values (1, 0);

-- Every message id that has been seen. `entry` grows with time and is never used twice, so that old rows are found
-- from its low end without an index on the time. `seq` and `lane` are null for inline messages and for `once`.
create table {prefix}seen (
    entry integer not null primary key autoincrement,
    identity blob not null unique,
    fingerprint blob not null,
    seq integer,
    lane integer,
    seen_at integer not null
) strict;

-- The messages, never updated. `place` is lane * 2^48 + seq: the key of the table itself, so that a lane is read in
-- order and appended to without a second index.
create table {prefix}log (
    place integer not null primary key,
    lane integer generated always as (place >> 48) virtual,
    seq integer generated always as (place & 281474976710655) virtual,
    identity blob not null,
    scope text not null,
    id text not null,
    kind text not null,
    key text,
    headers text not null,
    payload blob not null,
    not_before integer,
    received_at integer not null
) strict;

create table {prefix}handler (
    name text not null primary key,
    kinds text not null,
    ordered integer not null,
    paused integer not null default 0,
    registered_at integer not null
) strict, without rowid;

-- Up to where each handler has come. `token` marks who is working; `suspects` is how many messages that one reads,
-- `inherited` how many the one before it was reading when it disappeared.
create table {prefix}cursor (
    handler text not null,
    lane integer not null,
    position integer not null,
    token integer,
    started_at integer not null default 0,
    suspects integer not null default 0,
    inherited integer,
    primary key (handler, lane)
) strict, without rowid;

-- Deliveries with a row of their own. state: 0 ready, 1 held, 2 scheduled, 3 dead, 4 discarded.
-- A row with a token is leased until due_at.
create table {prefix}delivery (
    id integer not null primary key autoincrement,
    handler text not null,
    identity blob not null,
    scope text not null,
    message_id text not null,
    kind text not null,
    key text,
    headers text not null,
    payload blob not null,
    not_before integer,
    received_at integer not null,
    state integer not null check (state between 0 and 4),
    attempts integer not null,
    due_at integer not null,
    token integer,
    last_error text,
    unique (identity, handler)
) strict;

create index {prefix}delivery_due on {prefix}delivery (handler, due_at) where state in (0, 2);
create index {prefix}delivery_key on {prefix}delivery (handler, key, state, id) where key is not null and state <= 2;
create index {prefix}delivery_state on {prefix}delivery (handler, state, id);
create index {prefix}delivery_discarded on {prefix}delivery (due_at) where state = 4;

-- Every failed attempt; outlives the delivery's row.
create table {prefix}attempt (
    id integer not null primary key autoincrement,
    identity blob not null,
    handler text not null,
    attempt integer not null,
    at integer not null,
    error text not null
) strict;

create index {prefix}attempt_delivery on {prefix}attempt (identity, handler);

-- Known ids that came with other bytes.
create table {prefix}conflict (
    identity blob not null,
    fingerprint blob not null,
    scope text not null,
    message_id text not null,
    kind text not null,
    key text,
    headers text not null,
    payload blob not null,
    not_before integer,
    received_at integer not null,
    primary key (identity, fingerprint)
) strict;

create index {prefix}conflict_received on {prefix}conflict (received_at);

create table {prefix}outbox (
    seq integer not null primary key autoincrement,
    sink text not null,
    lane integer not null,
    scope text not null,
    id text not null,
    kind text not null,
    key text,
    headers text not null,
    payload blob not null,
    not_before integer,
    due_at integer not null,
    created_at integer not null,
    attempts integer not null default 0,
    dead integer not null default 0,
    last_error text
) strict;

create index {prefix}outbox_waiting on {prefix}outbox (sink, seq) where dead = 0;
-- Rows that could not be sent yet, and so hold back later ones of their key.
create index {prefix}outbox_failed on {prefix}outbox (sink, key, seq)
    where dead = 0 and key is not null and attempts > 0;
create index {prefix}outbox_dead on {prefix}outbox (sink) where dead = 1;

create table {prefix}relay (
    sink text not null,
    lane integer not null,
    token integer,
    leased_until integer not null,
    primary key (sink, lane)
) strict, without rowid;

-- minute 0 is the running total.
create table {prefix}counter (
    handler text not null,
    name text not null,
    minute integer not null,
    value integer not null,
    primary key (handler, name, minute)
) strict, without rowid;

create index {prefix}counter_minute on {prefix}counter (minute);
