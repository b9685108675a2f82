-- cancel_replay.sql: stops a replay that has not ended
update {prefix}replay set state = 2, ended_at = {now} where id = ?2 and state = 0
