-- clock.sql: locks nothing
select {now}, connection_id(), @@in_transaction
