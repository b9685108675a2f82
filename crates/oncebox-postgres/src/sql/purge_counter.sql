-- purge_counter.sql: locks the counter rows it removes
delete from {schema}.counter c
using (
    select o.handler, o.name, o.minute from {schema}.counter o
    where o.minute > 0 and o.minute < ((extract(epoch from clock_timestamp()) * 1000000)::bigint + $1) / 60000000 - 2880
    limit $2
) as old
where c.handler = old.handler and c.name = old.name and c.minute = old.minute
