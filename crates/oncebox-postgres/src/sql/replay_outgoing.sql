-- replay_outgoing.sql: locks the dead outbox rows of one sink
update {schema}.outbox
set dead = false, attempts = 0, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1
where sink = $2 and dead
