-- history.sql: the failed attempts of deliveries (a list of ids), oldest first, locks nothing
select delivery.id, attempt.attempt, attempt.at, attempt.error
from json_each(?1) as asked
cross join {prefix}delivery as delivery on delivery.id = asked.value
cross join {prefix}attempt as attempt
    on attempt.identity = delivery.identity and attempt.handler = delivery.handler
order by attempt.id
