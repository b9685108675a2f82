-- register_cursors.sql: locks only the rows it inserts
-- What commits after this statement has read the head has a higher seq, so a new handler misses nothing.
insert into {schema}.cursor (handler, lane, position)
select $1, lane, case when $2 then 0 else (select seq from {schema}.head) end
from generate_series(0, $3::integer - 1) as lane
order by lane
on conflict (handler, lane) do nothing
