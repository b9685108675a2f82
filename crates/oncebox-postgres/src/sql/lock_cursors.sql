-- lock_cursors.sql: locks cursor rows, by handler and lane, and so waits for the batches that run on them
select c.lane
from {schema}.cursor c
join unnest($1::text[], $2::smallint[]) as g (handler, lane) on g.handler = c.handler and g.lane = c.lane
order by c.handler, c.lane
for update of c
