-- delete_outgoing.sql: removes what was sent
delete from {prefix}outbox where sink = ?1 and seq in (select value from json_each(?2))
