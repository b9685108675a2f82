-- move_replay.sql: locks one replay row
update {schema}.replay
set position = ?, replayed = replayed + ?, paid_at = ?, state = ?,
    ended_at = case when ? = 0 then null else {now} end
where id = ?
