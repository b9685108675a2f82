-- catalog.sql: locks nothing; every table, column, index and routine in the schema named by the parameters, and how it is defined
select t.table_name as owner, concat('table `', t.table_name, '`') as object,
    concat_ws(' ', t.engine, t.table_collation, t.row_format, t.create_options) as definition
from information_schema.tables t
where t.table_schema = ?
union all
select c.table_name, concat('column `', c.table_name, '.', c.column_name, '`'),
    concat_ws(' ', c.column_type, c.is_nullable, c.column_default, c.extra, c.collation_name)
from information_schema.columns c
where c.table_schema = ?
union all
select s.table_name, concat('index `', s.index_name, '` of `', s.table_name, '`'),
    concat_ws(' ', max(s.non_unique), max(s.index_type), group_concat(s.column_name order by s.seq_in_index))
from information_schema.statistics s
where s.table_schema = ?
group by s.table_name, s.index_name
union all
select r.routine_name, concat(lower(r.routine_type), ' `', r.routine_name, '`'),
    concat_ws(' ', r.dtd_identifier, r.is_deterministic, r.sql_data_access, r.security_type,
        (select group_concat(concat_ws(' ', p.parameter_name, p.dtd_identifier) order by p.ordinal_position)
         from information_schema.parameters p
         where p.specific_schema = r.routine_schema and p.specific_name = r.routine_name),
        replace(r.routine_definition, r.routine_schema, ''))
from information_schema.routines r
where r.routine_schema = ?
