-- cancel_replay.sql: locks one replay row
update {schema}.replay set state = 2, ended_at = {now}
where id = ? and state = 0
