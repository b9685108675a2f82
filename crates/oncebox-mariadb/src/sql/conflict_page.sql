-- conflict_page.sql: locks nothing; after a place, so many at most, and no more once those before have so many bytes
with matching as (
    select c.received_at, c.identity, c.fingerprint, length(c.payload) as bytes
    from {schema}.conflict c
    where ? is null or c.received_at < ?
       or (c.received_at = ? and (c.identity < ? or (c.identity = ? and c.fingerprint < ?)))
    order by c.received_at desc, c.identity desc, c.fingerprint desc
    limit ?
),
page as (
    select m.identity, m.fingerprint, sum(m.bytes) over (
        order by m.received_at desc, m.identity desc, m.fingerprint desc rows unbounded preceding
    ) - m.bytes as earlier
    from matching m
)
select c.received_at, c.scope, c.message_id, c.kind, c.`key`, c.headers, c.payload, c.not_before, c.identity, c.fingerprint
from page p
straight_join {schema}.conflict c force index (primary) on c.identity = p.identity and c.fingerprint = p.fingerprint
where ? is null or p.earlier < ?
order by c.received_at desc, c.identity desc, c.fingerprint desc
