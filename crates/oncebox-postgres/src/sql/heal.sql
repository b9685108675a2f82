-- heal.sql: locks the first held row of each key of one handler that has nothing active, skips locked ones
-- Walks from key to key along the index instead of reading every held row.
with recursive clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
held as (
    (
        select d.key from {schema}.delivery d
        where d.handler = $2 and d.key is not null and d.state in (0, 1, 2)
        order by d.key limit 1
    )
    union all
    select (
        select d.key from {schema}.delivery d
        where d.handler = $2 and d.key > held.key and d.state in (0, 1, 2)
        order by d.key limit 1
    )
    from held where held.key is not null
),
orphan as materialized (
    select d.id
    from {schema}.delivery d
    where d.state = 1 and d.id in (
        select (
            select h.id from {schema}.delivery h
            where h.handler = $2 and h.key = held.key and h.state = 1
            order by h.id limit 1
        )
        from held
        where held.key is not null
          and not exists (select 1 from {schema}.handler h where h.name = $2 and h.paused)
          and not exists (
            select 1 from {schema}.delivery a where a.handler = $2 and a.key = held.key and a.state = 0
          )
    )
    for update of d skip locked
)
update {schema}.delivery d
set state = 0, due_at = clock.now, token = null
from orphan cross join clock
where d.id = orphan.id
