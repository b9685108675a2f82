-- conflicts_of.sql: at most 100, and no more once those before have 8 MiB of payloads; locks nothing
with matching as materialized (
    select c.received_at, c.fingerprint, octet_length(c.payload)::bigint as bytes
    from {schema}.conflict c
    where c.identity = $1
    order by c.received_at, c.fingerprint
    limit 100
),
page as (
    select m.fingerprint,
        sum(m.bytes) over (order by m.received_at, m.fingerprint rows unbounded preceding) - m.bytes as before
    from matching m
)
select c.received_at, c.scope, c.message_id, c.kind, c.key, c.headers, c.payload, c.not_before
from page p
cross join lateral (
    select r.received_at, r.scope, r.message_id, r.kind, r.key, r.headers, r.payload, r.not_before, r.fingerprint
    from {schema}.conflict r
    where r.identity = $1 and r.fingerprint = p.fingerprint
    limit 1
) as c
where p.before < 8388608
order by c.received_at, c.fingerprint
