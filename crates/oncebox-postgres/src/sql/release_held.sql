-- release_held.sql: locks the held delivery rows of one handler, which no longer keeps an order
update {schema}.delivery
set state = 0, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1
where handler = $2 and state = 1
