-- claim_response.sql: inserts one response row, or locks one that may be taken over, skipping it when it is locked
-- The row is looked at first, because an insert would wait for a transaction that is about to answer it.
-- The claim must outlive this process, not a crash of the database, so its commit does not wait for the disk.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now, set_config('synchronous_commit', 'off', true) as relaxed
),
found as materialized (
    select r.fingerprint, r.status, r.headers, r.body from {schema}.response r where r.identity = $2
),
inserted as (
    insert into {schema}.response (identity, fingerprint, token, leased_until, created_at, expires_at)
    select $2, $3, $4, clock.now + $5, clock.now, clock.now + $6
    from clock
    where clock.relaxed = 'off' and not exists (select 1 from found)
    on conflict (identity) do nothing
    returning 1
),
free as materialized (
    select r.identity
    from {schema}.response r cross join clock
    where r.identity = $2 and exists (select 1 from found) and r.leased_until <= clock.now
      and (r.expires_at <= clock.now or (r.status is null and r.fingerprint = $3))
    for update of r skip locked
),
taken as (
    update {schema}.response r
    set fingerprint = $3, token = $4, leased_until = clock.now + $5, created_at = clock.now,
        expires_at = clock.now + $6, status = null, headers = null, body = null
    from free cross join clock
    where r.identity = free.identity
    returning 1
)
select exists (select 1 from inserted) or exists (select 1 from taken) as ours,
    found.fingerprint, found.status, found.headers, found.body
from clock left join found on true
