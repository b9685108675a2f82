-- handlers.sql: locks nothing; reads at most $2 log rows per lane and $3 delivery rows per state
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now)
select
    h.name, h.kinds, h.paused,
    w.waiting, w.exact, clock.now - w.oldest_at as lag,
    (select count(*) from (
        select 1 from {schema}.delivery d
        where d.handler = h.name and d.state = 0 and d.last_error is not null limit $3) as n) as retrying,
    (select count(*) from (
        select 1 from {schema}.delivery d where d.handler = h.name and d.state = 1 limit $3) as n) as held,
    (select count(*) from (
        select 1 from {schema}.delivery d where d.handler = h.name and d.state = 2 limit $3) as n) as scheduled,
    (select count(*) from (
        select 1 from {schema}.delivery d where d.handler = h.name and d.state = 3 limit $3) as n) as dead
from clock cross join {schema}.handler h
cross join lateral (
    select
        coalesce(sum(case when n.rows < $2 then n.rows
            else greatest(n.rows, ((select seq from {schema}.head) - c.position) / $4) end), 0)::bigint as waiting,
        coalesce(bool_and(n.rows < $2), true) as exact,
        min(n.oldest_at) as oldest_at
    from {schema}.cursor c
    cross join lateral (
        select
            (select count(*) from (
                select 1 from {schema}.log l
                where l.lane = c.lane and l.seq > c.position order by l.seq limit $2) as r) as rows,
            (select l.received_at from {schema}.log l
                where l.lane = c.lane and l.seq > c.position order by l.seq limit 1) as oldest_at
    ) as n
    where c.handler = h.name
) as w
order by h.name
