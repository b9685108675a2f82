-- search_read.sql: locks nothing
select l.seq, l.received_at, l.scope, l.id, l.kind, l.key, l.headers, l.payload, l.not_before
from unnest($1::smallint[], $2::bigint[]) as g (lane, seq)
cross join lateral (
    select r.seq, r.received_at, r.scope, r.id, r.kind, r.key, r.headers, r.payload, r.not_before
    from {schema}.log r
    where r.lane = g.lane and r.seq = g.seq
    limit 1
) as l
