-- read_replay.sql: locks nothing
select id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at from {schema}.replay where id = $1
