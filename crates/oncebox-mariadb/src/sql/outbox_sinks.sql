-- outbox_sinks.sql: locks nothing; walks from sink to sink along the index
with recursive sinks (sink) as (
    select min(o.sink) from {schema}.outbox o
    union all
    select (select min(o.sink) from {schema}.outbox o where o.sink > sinks.sink)
    from sinks where sinks.sink is not null
)
select sink from sinks where sink is not null
