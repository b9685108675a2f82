-- search_read.sql: locks nothing; none that has $3 bytes of payloads before it
with asked as materialized (
    select g.number, l.lane, l.seq, l.bytes
    from unnest($1::smallint[], $2::bigint[]) with ordinality as g (lane, seq, number)
    cross join lateral (
        select r.lane, r.seq, octet_length(r.payload)::bigint as bytes
        from {schema}.log r
        where r.lane = g.lane and r.seq = g.seq
        limit 1
    ) as l
),
page as (
    select a.lane, a.seq, sum(a.bytes) over (order by a.number rows unbounded preceding) - a.bytes as before
    from asked a
)
select l.seq, l.received_at, l.scope, l.id, l.kind, l.key, l.headers, l.payload, l.not_before
from page p
cross join lateral (
    select r.seq, r.received_at, r.scope, r.id, r.kind, r.key, r.headers, r.payload, r.not_before
    from {schema}.log r
    where r.lane = p.lane and r.seq = p.seq
    limit 1
) as l
where p.before < $3
