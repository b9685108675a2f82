-- rename_counter.sql: locks the counter rows of one handler, both names
-- The sums stay under the old name as well until the caller removes them.
insert into {schema}.counter (handler, name, minute, value)
select ?, c.name, c.minute, c.value from {schema}.counter c where c.handler = ?
on duplicate key update value = {schema}.counter.value + values(value)
