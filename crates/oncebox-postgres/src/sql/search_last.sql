-- search_last.sql: locks nothing; the last row of each of $1 lanes up to $2
select l.seq, l.received_at
from generate_series(0, $1::integer - 1) as g (lane)
cross join lateral (
    select r.seq, r.received_at
    from {schema}.log r
    where r.lane = g.lane::smallint and r.seq <= $2
    order by r.seq desc
    limit 1
) as l
order by l.seq desc
limit 1
