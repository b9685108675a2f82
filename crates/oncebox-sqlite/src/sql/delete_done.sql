-- delete_done.sql: removes deliveries whose lease [id, token, attempt] is still held
delete from {prefix}delivery
where handler = ?1 and state = 0
  and (id, token, attempts) in (select value ->> 0, value ->> 1, value ->> 2 from json_each(?2))
returning key
