-- replay_outgoing.sql: locks the dead outbox rows of one sink
update {schema}.outbox force index (outbox_state)
set state = 0, attempts = 0, due_at = {now}
where sink = ? and state = 2
