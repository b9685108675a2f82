-- 0003_admin: what operators leave behind: paused sources, replays, the audit log and tokens.

create table if not exists {schema}.source (
    name varbinary(255) not null primary key,
    paused boolean not null,
    changed_at bigint not null
) engine = innodb;

-- state: 0 running, 1 done, 2 cancelled. It has looked at dead letters up to the id `position` and ends at `upto`.
-- `paid_at` is the time up to which its rate has been used up.
create table if not exists {schema}.replay (
    id bigint not null auto_increment primary key,
    filter longblob not null,
    rate bigint,
    actor longblob not null,
    state tinyint not null default 0,
    matched bigint not null,
    replayed bigint not null default 0,
    position bigint not null default 0,
    upto bigint not null,
    paid_at bigint not null,
    started_at bigint not null,
    ended_at bigint
) engine = innodb;

-- Rows are only ever added.
create table if not exists {schema}.audit (
    number bigint not null auto_increment primary key,
    at bigint not null,
    actor longblob not null,
    action longblob not null,
    target longblob not null,
    details longblob not null
) engine = innodb;

-- Never a token itself, only its hash.
create table if not exists {schema}.token (
    name varbinary(255) not null primary key,
    hash varbinary(255) not null,
    role varbinary(20) not null,
    created_at bigint not null,
    expires_at bigint
) engine = innodb;
