-- settle_history.sql: notes the errors of settled attempts; ?3 as in settle.sql
insert into {prefix}attempt (identity, handler, attempt, at, error)
select delivery.identity, delivery.handler, delivery.attempts, {now}, settled.value ->> 5
from json_each(?3) as settled
cross join {prefix}delivery as delivery on delivery.id = settled.value ->> 0
where delivery.handler = ?2 and delivery.state = 0 and delivery.token = settled.value ->> 1
  and delivery.attempts = settled.value ->> 2 and settled.value ->> 5 is not null
