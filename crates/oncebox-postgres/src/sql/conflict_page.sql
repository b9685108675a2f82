-- conflict_page.sql: locks nothing; after the place $1 to $3, at most $4, and no more once those before have $5 bytes
with matching as materialized (
    select c.received_at, c.identity, c.fingerprint, octet_length(c.payload)::bigint as bytes
    from {schema}.conflict c
    where $1::bigint is null or c.received_at < $1
       or (c.received_at = $1 and (c.identity, c.fingerprint) < ($2::uuid, $3::uuid))
    order by c.received_at desc, c.identity desc, c.fingerprint desc
    limit $4
),
page as (
    select m.identity, m.fingerprint, sum(m.bytes) over (
        order by m.received_at desc, m.identity desc, m.fingerprint desc rows unbounded preceding
    ) - m.bytes as before
    from matching m
)
select c.received_at, c.scope, c.message_id, c.kind, c.key, c.headers, c.payload, c.not_before, c.identity, c.fingerprint
from page p
cross join lateral (
    select r.received_at, r.scope, r.message_id, r.kind, r.key, r.headers, r.payload, r.not_before, r.identity,
        r.fingerprint
    from {schema}.conflict r
    where r.identity = p.identity and r.fingerprint = p.fingerprint
    limit 1
) as c
where $5::bigint is null or p.before < $5
order by c.received_at desc, c.identity desc, c.fingerprint desc
