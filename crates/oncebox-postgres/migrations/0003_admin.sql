-- 0003_admin: what operators leave behind: paused sources, replays, the audit log and tokens.

create table {schema}.source (
    name text collate "C" primary key,
    paused boolean not null,
    changed_at bigint not null
);

-- state: 0 running, 1 done, 2 cancelled. It has looked at dead letters up to the id `position` and ends at `upto`.
-- `paid_at` is the time up to which its rate has been used up.
create table {schema}.replay (
    id bigint generated always as identity primary key,
    filter text not null,
    rate bigint,
    actor text not null,
    state smallint not null default 0,
    matched bigint not null,
    replayed bigint not null default 0,
    position bigint not null default 0,
    upto bigint not null,
    paid_at bigint not null,
    started_at bigint not null,
    ended_at bigint
);

-- Rows are only ever added.
create table {schema}.audit (
    number bigint generated always as identity primary key,
    at bigint not null,
    actor text not null,
    action text not null,
    target text not null,
    details text not null
);

-- Never a token itself, only its hash.
create table {schema}.token (
    name text collate "C" primary key,
    hash text not null,
    role text not null,
    created_at bigint not null,
    expires_at bigint
);
