-- 0004_responses: the responses to requests with an idempotency key.
-- A row without a status is a claim: `token` says whose, `leased_until` how long it holds. With a status it is answered.
create table {schema}.response (
    identity uuid primary key,
    fingerprint uuid not null,
    token bigint not null,
    leased_until bigint not null,
    created_at bigint not null,
    expires_at bigint not null,
    status integer,
    headers bytea,
    body bytea
);
create index response_expires_at on {schema}.response (expires_at);
