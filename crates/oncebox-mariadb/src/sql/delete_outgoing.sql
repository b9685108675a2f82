-- delete_outgoing.sql: locks the outbox rows named, by seq, and removes them
delete o from json_table(?, '$[*]' columns (seq bigint path '$')) g
straight_join {schema}.outbox o force index (primary) on o.seq = g.seq
where o.sink = ?
