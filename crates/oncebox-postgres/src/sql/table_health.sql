-- table_health.sql: locks nothing; rows that are dead, autovacuum, and indexes that are not valid, of the tables in schema $1
select c.relname::text, coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
    coalesce('autovacuum_enabled=false' = any(c.reloptions) or 'autovacuum_enabled=off' = any(c.reloptions), false),
    (select min(i.indexrelid::regclass::text) from pg_index i where i.indrelid = c.oid and not i.indisvalid)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_stat_user_tables s on s.relid = c.oid
where n.nspname = $1 and c.relkind = 'r'
order by c.relname
