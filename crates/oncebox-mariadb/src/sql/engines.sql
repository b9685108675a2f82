-- engines.sql: locks nothing
select count(*) from information_schema.tables
where table_schema = ? and table_type = 'BASE TABLE' and engine <> 'InnoDB'
