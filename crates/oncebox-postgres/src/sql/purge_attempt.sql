-- purge_attempt.sql: locks the attempt rows it removes; looks at $4 rows after id $3
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
looked as materialized (
    select a.id, a.identity, a.handler, a.at from {schema}.attempt a where a.id > $3 order by a.id limit $4
),
old as materialized (
    select l.id
    from looked l cross join clock
    where l.at < clock.now - $2
      and not exists (
        select 1 from {schema}.delivery d where d.identity = l.identity and d.handler = l.handler
      )
    order by l.id
    limit $5
),
gone as (
    delete from {schema}.attempt a where a.id = any(array(select old.id from old)) returning 1
)
select (select count(*) from gone) as removed, (select max(old.id) from old) as last_removed,
    (select max(l.id) from looked l) as last_looked, (select count(*) from looked) as looked
