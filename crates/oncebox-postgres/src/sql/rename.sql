-- rename.sql: locks every row of one handler
with handlers as (update {schema}.handler set name = $2 where name = $1),
cursors as (update {schema}.cursor set handler = $2 where handler = $1),
deliveries as (update {schema}.delivery set handler = $2 where handler = $1),
attempts as (update {schema}.attempt set handler = $2 where handler = $1),
old as (delete from {schema}.counter where handler = $1 returning name, minute, value)
insert into {schema}.counter as c (handler, name, minute, value)
select $2, old.name, old.minute, old.value from old
order by old.name, old.minute
on conflict (handler, name, minute) do update set value = c.value + excluded.value
