-- deliveries_of.sql: the deliveries of one message, locks nothing
select id, handler, state, attempts, due_at, received_at, last_error is not null,
    scope, message_id, kind, key, headers, payload, not_before
from {prefix}delivery
where identity = ?1
order by handler
