-- commit_lanes.sql: moves cursor rows this transaction has locked; the last fence before the commit
update {schema}.cursor c
set position = g.position, started_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1, token = case when $6 then c.token end
from unnest($4::smallint[], $5::bigint[]) as g (lane, position)
where c.handler = $2 and c.token = $3 and c.lane = g.lane and current_setting('oncebox.tx', true) = $7
