-- release_held.sql: locks the held delivery rows of one handler, which no longer keeps an order
update {schema}.delivery force index (delivery_state)
set state = 0, due_at = {now}
where handler = ? and state = 1
