-- lock_cursors.sql: locks cursor rows, by handler and lane, and so waits for the batches that run on them
select c.lane
from json_table(?, '$[*]' columns (handler varchar(200) path '$[0]', lane smallint path '$[1]')) g
straight_join {schema}.cursor c force index (primary) on c.handler = unhex(g.handler) and c.lane = g.lane
for update
