-- search_places.sql: locks nothing; a short range of each of $1 lanes, whose places are after $2 up to $3
select l.lane, l.seq
from generate_series(0, $1::integer - 1) as g (lane)
cross join lateral (
    select r.lane, r.seq, r.scope, r.id, r.kind, r.key, r.received_at
    from {schema}.log r
    where r.lane = g.lane::smallint and r.seq > $2 and r.seq <= $3
    order by r.seq desc
    limit $3 - $2
) as l
where ($4::text is null or l.scope = $4)
  and ($5::text is null or l.id = $5)
  and ($6::text is null or l.kind = $6)
  and ($7::text is null or starts_with(l.kind, $7))
  and ($8::text is null or l.key = $8)
  and ($9::bigint is null or l.received_at >= $9)
  and ($10::bigint is null or l.received_at < $10)
order by l.seq desc
limit $11
