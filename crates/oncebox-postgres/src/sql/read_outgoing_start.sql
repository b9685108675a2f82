-- read_outgoing_start.sql: locks nothing; what read_outgoing.sql finds, if the beginning of the outbox has all of it
-- In a backlog it mostly has: then this costs a tenth. Fewer rows than asked for mean that others may come after them.
-- The size of the beginning is written out for the planner, which may otherwise rather sort the whole outbox.
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
blocked as materialized (
    select o.key, min(o.seq) as seq
    from {schema}.outbox o cross join clock
    where o.sink = $2 and o.attempts > 0 and not o.dead and o.key is not null and o.due_at > clock.now
    group by o.key
),
ours as materialized (
    select r.lane
    from unnest($4::smallint[]) as asked (lane)
    join {schema}.relay r on r.sink = $2 and r.lane = asked.lane and r.token = $3
)
select o.seq, o.attempts, o.sink, o.scope, o.id, o.kind, o.key, o.headers, o.payload, o.not_before
from (select * from {schema}.outbox order by seq limit 16384) o
where o.sink = $2 and not o.dead and o.due_at <= (select now from clock)
  and (o.lane in (select lane from ours)) is true -- not a join, which may compare every row with every lane
  and not exists (select 1 from blocked b where b.key = o.key and b.seq < o.seq)
order by o.seq
limit $5
