-- purge_responses.sql: locks the response rows it removes, skips locked ones
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now)
delete from {schema}.response r
where r.identity = any(array(
    select o.identity from {schema}.response o
    where o.expires_at <= (select now from clock) and o.leased_until <= (select now from clock)
    order by o.expires_at
    limit $2
    for update skip locked
))
