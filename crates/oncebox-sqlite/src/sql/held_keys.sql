-- held_keys.sql: (handler, key) pairs with a delivery that is ready or held, locks nothing
select handler.value, key.value
from json_each(?1) as handler cross join json_each(?2) as key
where exists (
    select 1 from {prefix}delivery as delivery
    where delivery.handler = handler.value and delivery.key = key.value
      and delivery.state <= 2 and delivery.state in (0, 1)
)
