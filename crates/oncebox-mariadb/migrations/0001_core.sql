-- 0001_core: the log, its cursors, deliveries with a row of their own, the outbox and the counters.
-- Times are microseconds since 1970 in UTC by this database's clock. Texts are kept as bytes: whatever the character
-- set of a connection, they come out as they went in, and `a`, `A` and `a ` are three ids.

-- The last seq given out. Receivers lock this row, so seq order is commit order.
create table if not exists {schema}.head (
    one tinyint not null primary key check (one = 1),
    seq bigint not null
) engine = innodb;
insert into {schema}.head (one, seq) values (1, 0) on duplicate key update seq = seq;

-- Every message id that still blocks duplicates. Rows are never updated. `seq` is the number in the log, or, for
-- messages handled inline and for `once`, a negative number of the one call that recorded it; so whoever reads a row
-- knows whether he wrote it.
create table if not exists {schema}.seen (
    identity binary(16) not null primary key,
    fingerprint binary(16) not null,
    seen_at bigint not null,
    seq bigint not null,
    lane smallint
) engine = innodb;

-- Received messages, append-only.
create table if not exists {schema}.log (
    lane smallint not null,
    seq bigint not null,
    received_at bigint not null,
    not_before bigint,
    identity binary(16) not null,
    scope varbinary(255) not null,
    id varbinary(512) not null,
    kind varbinary(255) not null,
    `key` varbinary(512),
    headers longblob not null,
    payload longblob not null,
    primary key (lane, seq)
) engine = innodb;

create table if not exists {schema}.handler (
    name varbinary(100) not null primary key,
    kinds longblob not null,
    ordered boolean not null,
    paused boolean not null default false,
    registered_at bigint not null
) engine = innodb;

-- `token` marks who is working, `suspects` how many messages that one reads.
create table if not exists {schema}.cursor (
    handler varbinary(100) not null,
    lane smallint not null,
    position bigint not null,
    token bigint,
    started_at bigint not null default 0,
    suspects integer not null default 0,
    primary key (handler, lane)
) engine = innodb;

-- state: 0 ready (leased while token is set), 1 held, 2 scheduled, 3 dead, 4 discarded.
-- due_at of a leased row is the end of its lease, so a lapsed lease is simply due again. `ready_at` is there for its
-- index, which has to find what is due and nothing else.
create table if not exists {schema}.delivery (
    id bigint not null auto_increment primary key,
    handler varbinary(100) not null,
    identity binary(16) not null,
    scope varbinary(255) not null,
    message_id varbinary(512) not null,
    kind varbinary(255) not null,
    `key` varbinary(512),
    headers longblob not null,
    payload longblob not null,
    not_before bigint,
    received_at bigint not null,
    state tinyint not null,
    attempts integer not null,
    due_at bigint not null,
    token bigint,
    last_error longblob,
    ready_at bigint as (case when state in (0, 2) then due_at end) stored,
    unique key delivery_identity (identity, handler),
    key delivery_due (handler, ready_at, id),
    key delivery_key (handler, `key`, state, id),
    key delivery_state (handler, state, id)
) engine = innodb;

-- Failed attempts; they outlive the delivery's row.
create table if not exists {schema}.attempt (
    id bigint not null auto_increment primary key,
    identity binary(16) not null,
    handler varbinary(100) not null,
    attempt integer not null,
    at bigint not null,
    error longblob not null,
    key attempt_identity (identity, handler)
) engine = innodb;

create table if not exists {schema}.conflict (
    identity binary(16) not null,
    fingerprint binary(16) not null,
    scope varbinary(255) not null,
    message_id varbinary(512) not null,
    kind varbinary(255) not null,
    `key` varbinary(512),
    headers longblob not null,
    payload longblob not null,
    not_before bigint,
    received_at bigint not null,
    primary key (identity, fingerprint),
    key conflict_received_at (received_at)
) engine = innodb;

-- state: 0 waiting, 1 failed and waiting for its next try, 2 dead.
create table if not exists {schema}.outbox (
    seq bigint not null auto_increment primary key,
    sink varbinary(255) not null,
    lane smallint not null,
    scope varbinary(255) not null,
    id varbinary(512) not null,
    kind varbinary(255) not null,
    `key` varbinary(512),
    headers longblob not null,
    payload longblob not null,
    not_before bigint,
    due_at bigint not null,
    created_at bigint not null,
    attempts integer not null default 0,
    state tinyint not null default 0,
    last_error longblob,
    key outbox_state (sink, state, seq)
) engine = innodb;

create table if not exists {schema}.relay (
    sink varbinary(255) not null,
    lane smallint not null,
    token bigint,
    leased_until bigint not null default 0,
    primary key (sink, lane)
) engine = innodb;

-- minute 0 is the running total.
create table if not exists {schema}.counter (
    handler varbinary(100) not null,
    name varbinary(100) not null,
    minute bigint not null,
    value bigint not null,
    primary key (handler, name, minute),
    key counter_minute (minute)
) engine = innodb;

-- Where the next purge goes on in tables that it walks instead of indexing them by time.
create table if not exists {schema}.sweep (
    name varbinary(20) not null primary key,
    position bigint not null,
    identity binary(16) not null
) engine = innodb;
insert into {schema}.sweep (name, position, identity)
values ('seen', 0, x'00000000000000000000000000000000'), ('attempt', 0, x'00000000000000000000000000000000'),
    ('delivery', 0, x'00000000000000000000000000000000')
on duplicate key update position = position;
