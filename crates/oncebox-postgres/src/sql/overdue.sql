-- overdue.sql: locks nothing; reads at most 1,000 due rows of each handler
select h.name, n.rows, (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1) - n.first
from {schema}.handler h
cross join lateral (
    select count(*) as rows, min(r.due_at) as first
    from (
        select d.due_at from {schema}.delivery d
        where d.handler = h.name and d.state in (0, 2) and d.due_at < (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 - $2)
        order by d.due_at
        limit 1000
    ) as r
) as n
where n.rows > 0
order by h.name
