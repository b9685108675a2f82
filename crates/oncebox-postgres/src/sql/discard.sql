-- discard.sql: locks the dead delivery rows named
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
given_up as (
    update {schema}.delivery d
    set state = 4, due_at = clock.now, token = null
    from clock
    where d.id = any($2::bigint[]) and d.state = 3
    returning d.id, d.identity, d.handler, d.attempts
),
history as (
    insert into {schema}.attempt (identity, handler, attempt, at, error)
    select g.identity, g.handler, g.attempts, clock.now, $3
    from given_up g cross join clock
    order by g.id
)
select count(*) from given_up
