-- 0002_admin.sql: what operators leave behind: paused sources, replays, the audit log and tokens.

create table {prefix}source (
    name text not null primary key,
    paused integer not null,
    changed_at integer not null
) strict, without rowid;

-- state: 0 running, 1 done, 2 cancelled. It has looked at dead letters up to the id `position` and ends at `upto`.
-- `paid_at` is the time up to which its rate has been used up.
create table {prefix}replay (
    id integer not null primary key autoincrement,
    filter text not null,
    rate integer,
    actor text not null,
    state integer not null default 0,
    matched integer not null,
    replayed integer not null default 0,
    position integer not null default 0,
    upto integer not null,
    paid_at integer not null,
    started_at integer not null,
    ended_at integer
) strict;

-- Rows are only ever added.
create table {prefix}audit (
    number integer not null primary key autoincrement,
    at integer not null,
    actor text not null,
    action text not null,
    target text not null,
    details text not null
) strict;

-- Never a token itself, only its hash.
create table {prefix}token (
    name text not null primary key,
    hash text not null,
    role text not null,
    created_at integer not null,
    expires_at integer
) strict, without rowid;
