-- read_outgoing.sql: locks nothing; a statement of its own, so that it sees what the last owner of the lanes did
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
blocked as materialized (
    select o.key, min(o.seq) as seq
    from {schema}.outbox o cross join clock
    where o.sink = $2 and o.attempts > 0 and not o.dead and o.key is not null and o.due_at > clock.now
    group by o.key
),
next as materialized (
    select found.seq
    from clock cross join unnest($4::smallint[]) as asked (lane)
    join {schema}.relay r on r.sink = $2 and r.lane = asked.lane and r.token = $3
    cross join lateral (
        select o.seq
        from {schema}.outbox o
        where o.sink = $2 and o.lane = asked.lane and not o.dead and o.due_at <= clock.now
          and not exists (select 1 from blocked b where b.key = o.key and b.seq < o.seq)
        order by o.seq
        limit (select $5::bigint) -- hidden from the planner, which may otherwise rather sort the whole lane
    ) as found
    order by found.seq
    limit $5
)
select o.seq, o.attempts, o.sink, o.scope, o.id, o.kind, o.key, o.headers, o.payload, o.not_before
from next join {schema}.outbox o on o.seq = next.seq
order by o.seq
