-- lock_lanes.sql: locks the cursor rows of the claimed lanes, skips locked ones
-- Beside them what the log has at the place ($4, $5), where this process appended last, and the head.
select c.lane, c.position, pg_backend_pid() as pid, (extract(epoch from now()) * 1000000)::bigint as began_at,
    (select l.identity from {schema}.log l where l.lane = $4 and l.seq = $5) as tail_identity,
    (select l.received_at from {schema}.log l where l.lane = $4 and l.seq = $5) as tail_received_at,
    (select h.seq from {schema}.head h) as head
from {schema}.cursor c
where c.handler = $1 and c.token = $2 and c.lane = any($3::smallint[])
for update skip locked
