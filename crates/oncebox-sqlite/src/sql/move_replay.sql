-- move_replay.sql: writes down how far a replay has come
update {prefix}replay
set position = ?3, replayed = replayed + ?4, paid_at = ?5, state = ?6,
    ended_at = case when ?6 = 0 then null else {now} end
where id = ?2
returning id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at
