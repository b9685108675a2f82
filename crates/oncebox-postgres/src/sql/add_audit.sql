-- add_audit.sql: locks only the row it inserts
insert into {schema}.audit (at, actor, action, target, details)
values ((extract(epoch from clock_timestamp()) * 1000000)::bigint + $1, $2, $3, $4, $5)
returning number, at
