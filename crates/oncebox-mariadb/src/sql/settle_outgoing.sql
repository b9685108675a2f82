-- settle_outgoing.sql: locks the outbox rows named whose lanes are still ours
update json_table(?, '$[*]' columns (seq bigint path '$[0]', state tinyint path '$[1]', delay bigint path '$[2]')) g
straight_join {schema}.outbox o force index (primary) on o.seq = g.seq
straight_join {schema}.relay r on r.sink = ? and r.lane = o.lane and r.token = ?
set o.attempts = o.attempts + 1, o.due_at = {now} + g.delay, o.state = g.state, o.last_error = ?
where o.sink = ?
