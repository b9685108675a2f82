-- list_replays.sql: locks nothing
select id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at from {schema}.replay where state = 0 or not $1 order by id desc limit $2
