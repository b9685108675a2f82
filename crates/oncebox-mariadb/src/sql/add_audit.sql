-- add_audit.sql: locks only the row it inserts
insert into {schema}.audit (at, actor, action, target, details)
values ({now}, ?, ?, ?, ?)
returning number, at
