-- commit_done.sql: removes leased delivery rows and locks the next held row of each of their keys
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
ended as (
    delete from {schema}.delivery d
    using unnest($3::bigint[], $4::bigint[], $5::integer[]) as g (id, token, attempt)
    where d.id = g.id and d.token = g.token and d.attempts = g.attempt and d.handler = $2 and d.state = 0
      and current_setting('oncebox.tx', true) = $6
    returning d.id, d.key
),
promoted as (
    update {schema}.delivery p
    set state = 0, due_at = clock.now, token = null
    from clock
    where p.state = 1
      and p.id in (
        select (
            select h.id from {schema}.delivery h
            where h.handler = $2 and h.key = k.key and h.state = 1
            order by h.id limit 1
        )
        from (select distinct ended.key from ended where ended.key is not null) as k
        where (select h.ordered from {schema}.handler h where h.name = $2)
          and not exists (
            select 1 from {schema}.delivery a
            where a.handler = $2 and a.key = k.key and a.state = 0 and a.id not in (select ended.id from ended)
          )
    )
)
select count(*) from ended
