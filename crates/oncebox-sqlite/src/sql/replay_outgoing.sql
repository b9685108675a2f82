-- replay_outgoing.sql: makes dead outgoing messages of one sink wait again
update {prefix}outbox set dead = 0, attempts = 0, due_at = {now} where sink = ?2 and dead = 1
returning 1
