-- move_replay.sql: locks one replay row
update {schema}.replay
set position = $3, replayed = replayed + $4, paid_at = $5, state = $6,
    ended_at = case when $6 = 0 then null else (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 end
where id = $2
returning id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at
