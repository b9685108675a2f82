-- search_read.sql: locks nothing; none that has so many bytes of payloads before it
with asked as (
    select g.number, l.lane, l.seq, length(l.payload) as bytes
    from json_table(?, '$[*]' columns (number for ordinality, lane smallint path '$[0]', seq bigint path '$[1]')) g
    straight_join {schema}.log l force index (primary) on l.lane = g.lane and l.seq = g.seq
),
page as (
    select a.lane, a.seq, sum(a.bytes) over (order by a.number rows unbounded preceding) - a.bytes as earlier
    from asked a
)
select l.seq, l.received_at, l.scope, l.id, l.kind, l.`key`, l.headers, l.payload, l.not_before
from page p
straight_join {schema}.log l force index (primary) on l.lane = p.lane and l.seq = p.seq
where p.earlier < ?
