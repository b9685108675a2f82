-- 0004_responses: the responses to requests with an idempotency key.
-- A row without a status is a claim: `token` says whose, `leased_until` how long it holds. With a status it is answered.
create table if not exists {schema}.response (
    identity binary(16) not null primary key,
    fingerprint binary(16) not null,
    token bigint not null,
    leased_until bigint not null,
    created_at bigint not null,
    expires_at bigint not null,
    status integer,
    headers longblob,
    body longblob,
    index response_expires_at (expires_at)
) engine = innodb;
