-- remove_outgoing.sql: locks and deletes the outbox rows named
-- Whoever sent them: a message that a sink has confirmed is sent.
delete from {schema}.outbox o where o.seq = any ($2::bigint[]) and o.sink = $1
