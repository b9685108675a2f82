-- outbox_status.sql: locks nothing; walks from sink to sink along the indexes and counts at most $2 rows of each
with recursive clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
waiting as (
    (select o.sink from {schema}.outbox o where not o.dead order by o.sink limit 1)
    union all
    select (select o.sink from {schema}.outbox o where not o.dead and o.sink > waiting.sink order by o.sink limit 1)
    from waiting where waiting.sink is not null
),
refused as (
    (select o.sink from {schema}.outbox o where o.dead order by o.sink limit 1)
    union all
    select (select o.sink from {schema}.outbox o where o.dead and o.sink > refused.sink order by o.sink limit 1)
    from refused where refused.sink is not null
)
select
    s.sink,
    (select count(*) from (
        select 1 from {schema}.outbox o where o.sink = s.sink and not o.dead limit $2) as n) as waiting,
    (select count(*) from (
        select 1 from {schema}.outbox o where o.sink = s.sink and o.attempts > 0 and not o.dead limit $2) as n) as retrying,
    (select count(*) from (
        select 1 from {schema}.outbox o where o.sink = s.sink and o.dead limit $2) as n) as dead,
    clock.now - (
        select min(first.created_at)
        from generate_series(0, $3::integer - 1) as lane
        cross join lateral (
            select o.created_at from {schema}.outbox o
            where o.sink = s.sink and o.lane = lane::smallint and not o.dead
            order by o.seq limit 1
        ) as first
    ) as lag
from clock cross join (
    select sink from waiting where sink is not null union select sink from refused where sink is not null
) as s
order by s.sink
