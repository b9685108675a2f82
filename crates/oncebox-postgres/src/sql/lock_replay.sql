-- lock_replay.sql: locks one replay row
select id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at, (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now
from {schema}.replay where id = $2 for update
