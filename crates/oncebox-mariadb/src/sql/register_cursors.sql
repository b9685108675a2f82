-- register_cursors.sql: locks the cursor rows of one handler, of which it inserts those that are missing
-- What commits after this statement has read the head has a higher seq, so a new handler misses nothing.
insert into {schema}.cursor (handler, lane, position)
select ?, g.lane, case when ? then 0 else (select h.seq from {schema}.head h) end
from json_table(?, '$[*]' columns (lane smallint path '$')) g
on duplicate key update position = {schema}.cursor.position
