-- settle.sql: ends leases of delivery rows this transaction has locked
update json_table(?, '$[*]' columns (
    id bigint path '$[0]', state tinyint path '$[1]', delay bigint path '$[2]', uncounted int path '$[3]'
)) g
straight_join {schema}.delivery d force index (primary) on d.id = g.id
set d.state = g.state, d.token = null, d.due_at = {now} + g.delay, d.attempts = d.attempts - g.uncounted,
    d.last_error = coalesce(?, d.last_error)
