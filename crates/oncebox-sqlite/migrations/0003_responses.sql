-- 0003_responses.sql: the responses to requests with an idempotency key.
-- A row without a status is a claim: `token` says whose, `leased_until` how long it holds. With a status it is answered.
create table {prefix}response (
    identity blob not null primary key,
    fingerprint blob not null,
    token integer not null,
    leased_until integer not null,
    created_at integer not null,
    expires_at integer not null,
    status integer,
    headers blob,
    body blob
) strict;
create index {prefix}response_expires_at on {prefix}response (expires_at);
