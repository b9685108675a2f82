-- foreign_engines.sql: locks nothing
select table_name, engine from information_schema.tables
where table_schema = ? and table_type = 'BASE TABLE' and engine <> 'InnoDB'
order by table_name
