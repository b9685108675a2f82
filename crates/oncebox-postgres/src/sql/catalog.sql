-- catalog.sql: locks nothing; everything in the schema $1 and how it is defined, with the schema's name taken out
with space as (select n.oid, n.nspname from pg_namespace n where n.nspname = $1)
select c.relname::text as owner, 'table `' || c.relname || '`' as object,
    concat_ws(' ', c.relpersistence, array_to_string(c.reloptions, ',')) as definition
from space join pg_class c on c.relnamespace = space.oid
where c.relkind in ('r', 'p')
union all
select c.relname, 'column `' || c.relname || '.' || a.attname || '`',
    concat_ws(
        ' ', format_type(a.atttypid, a.atttypmod), l.collname, a.attnotnull, a.attidentity, a.attgenerated,
        pg_get_expr(d.adbin, d.adrelid)
    )
from space
join pg_class c on c.relnamespace = space.oid and c.relkind in ('r', 'p')
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
left join pg_collation l on l.oid = a.attcollation
union all
select c.relname, 'constraint `' || k.conname || '` of `' || c.relname || '`', pg_get_constraintdef(k.oid)
from space
join pg_class c on c.relnamespace = space.oid and c.relkind in ('r', 'p')
join pg_constraint k on k.conrelid = c.oid and k.contype <> 'n'
union all
select c.relname, 'index `' || i.relname || '`', replace(pg_get_indexdef(i.oid), quote_ident(space.nspname) || '.', '')
from space
join pg_class c on c.relnamespace = space.oid and c.relkind in ('r', 'p')
join pg_index x on x.indrelid = c.oid
join pg_class i on i.oid = x.indexrelid
union all
select p.proname, 'function `' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')`',
    concat_ws(
        ' ', pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), l.lanname, p.provolatile, p.prosecdef,
        p.proisstrict, p.proconfig, replace(p.prosrc, '"' || space.nspname || '"', '{schema}')
    )
from space
join pg_proc p on p.pronamespace = space.oid
join pg_language l on l.oid = p.prolang
order by 1, 2
