-- purge_delivery.sql: locks the discarded delivery rows it removes; looks at $4 rows after id $3
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
looked as materialized (
    select d.id, d.state, d.due_at from {schema}.delivery d where d.id > $3 order by d.id limit $4
),
old as materialized (
    select l.id from looked l cross join clock
    where l.state = 4 and l.due_at < clock.now - $2
    order by l.id
    limit $5
),
gone as (
    delete from {schema}.delivery d where d.id = any(array(select old.id from old)) and d.state = 4 returning 1
)
select (select count(*) from gone) as removed, (select max(old.id) from old) as last_removed,
    (select max(l.id) from looked l) as last_looked, (select count(*) from looked) as looked
