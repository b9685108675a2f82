-- outbox_status.sql: what waits per sink with bounded counts, locks nothing
with recursive sinks (sink) as (
    select (select min(sink) from {prefix}outbox where dead = 0)
    union all
    select (select min(sink) from {prefix}outbox where dead = 0 and sink > sinks.sink) from sinks
    where sinks.sink is not null
), dead_sinks (sink) as (
    select (select min(sink) from {prefix}outbox where dead = 1)
    union all
    select (select min(sink) from {prefix}outbox where dead = 1 and sink > dead_sinks.sink) from dead_sinks
    where dead_sinks.sink is not null
), named (sink) as (
    select sink from sinks where sink is not null union select sink from dead_sinks where sink is not null
)
select named.sink,
    (select count(*) from (select 1 from {prefix}outbox where sink = named.sink and dead = 0 limit 10000)),
    (select count(*) from (
        select attempts from {prefix}outbox where sink = named.sink and dead = 0 limit 10000
    ) where attempts > 0),
    (select count(*) from (select 1 from {prefix}outbox where sink = named.sink and dead = 1 limit 10000)),
    {now} - (select created_at from {prefix}outbox where sink = named.sink and dead = 0 order by seq limit 1)
from named
order by named.sink
