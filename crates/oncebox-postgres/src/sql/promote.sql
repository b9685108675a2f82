-- promote.sql: locks the first held row of each (handler, key) that has nothing active
update {schema}.delivery d
set state = 0, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1, token = null
where d.state = 1 and d.id in (
    select (
        select h.id from {schema}.delivery h
        where h.handler = g.handler and h.key = g.key and h.state = 1
        order by h.id limit 1
    )
    from unnest($2::text[], $3::text[]) as g (handler, key)
    where not exists (
        select 1 from {schema}.delivery a where a.handler = g.handler and a.key = g.key and a.state = 0
    )
)
