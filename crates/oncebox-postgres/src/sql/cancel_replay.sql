-- cancel_replay.sql: locks one replay row
update {schema}.replay set state = 2, ended_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1
where id = $2 and state = 0
