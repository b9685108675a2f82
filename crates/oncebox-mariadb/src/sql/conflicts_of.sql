-- conflicts_of.sql: at most 100, and no more once those before have 8 MiB of payloads; locks nothing
with matching as (
    select c.received_at, c.identity, c.fingerprint, length(c.payload) as bytes
    from {schema}.conflict c
    where c.identity = ?
    order by c.received_at, c.fingerprint
    limit 100
),
page as (
    select m.identity, m.fingerprint,
        sum(m.bytes) over (order by m.received_at, m.fingerprint rows unbounded preceding) - m.bytes as earlier
    from matching m
)
select c.received_at, c.scope, c.message_id, c.kind, c.`key`, c.headers, c.payload, c.not_before
from page p
straight_join {schema}.conflict c force index (primary) on c.identity = p.identity and c.fingerprint = p.fingerprint
where p.earlier < 8388608
order by c.received_at, c.fingerprint
