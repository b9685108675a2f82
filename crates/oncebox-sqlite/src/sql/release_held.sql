-- release_held.sql: makes the held deliveries of one handler ready, which no longer keeps an order
update {prefix}delivery set state = 0, due_at = {now} where handler = ?2 and state = 1
