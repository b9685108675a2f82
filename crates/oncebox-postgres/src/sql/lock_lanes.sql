-- lock_lanes.sql: locks the cursor rows of the claimed lanes, skips locked ones
select c.lane, c.position, pg_backend_pid() as pid, (extract(epoch from now()) * 1000000)::bigint as began_at
from {schema}.cursor c
where c.handler = $1 and c.token = $2 and c.lane = any($3::smallint[])
for update skip locked
