-- read_outgoing.sql: locks nothing; a statement of its own, so that it sees what the last owner of the lanes did
-- Of each lane twice its share of the limit is looked at first, and more only where the share ends too early: to look at
-- the whole limit of every lane is most of the work, and most of it is thrown away.
-- Limits are hidden from the planner, which may otherwise rather sort the whole lane.
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
),
share as materialized (
    select least($5::bigint, 2 * $5::bigint / greatest(count(*), 1) + 1) as size from ours
),
first as materialized (
    select ours.lane, found.seq
    from clock cross join ours
    cross join lateral (
        select o.seq
        from {schema}.outbox o
        where o.sink = $2 and o.lane = ours.lane and not o.dead and o.due_at <= clock.now
          and not exists (select 1 from blocked b where b.key = o.key and b.seq < o.seq)
        order by o.seq
        limit (select size from share)
    ) as found
),
-- Nothing after this one is taken.
last as materialized (
    select coalesce((select seq from first order by seq offset $5::bigint - 1 limit 1), 9223372036854775807) as seq
),
longer as materialized (
    select first.lane, max(first.seq) as seq
    from first
    group by first.lane
    having count(*) >= (select size from share) and max(first.seq) < (select seq from last)
),
more as materialized (
    select found.seq
    from clock cross join longer cross join last
    cross join lateral (
        select o.seq
        from {schema}.outbox o
        where o.sink = $2 and o.lane = longer.lane and o.seq > longer.seq and o.seq < last.seq
          and not o.dead and o.due_at <= clock.now
          and not exists (select 1 from blocked b where b.key = o.key and b.seq < o.seq)
        order by o.seq
        limit (select $5::bigint)
    ) as found
),
next as materialized (
    select seq from (select seq from first union all select seq from more) as found order by seq limit $5
)
select o.seq, o.attempts, o.sink, o.scope, o.id, o.kind, o.key, o.headers, o.payload, o.not_before
from {schema}.outbox o
where o.seq = any (array(select seq from next)) -- not a join, for which the whole outbox may be read
order by o.seq
