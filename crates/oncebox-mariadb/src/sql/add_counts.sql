-- add_counts.sql: locks the counter rows named, by handler, name and minute
insert into {schema}.counter (handler, name, minute, value)
values {rows}
on duplicate key update value = {schema}.counter.value + values(value)
