-- deliveries_of.sql: locks nothing
select d.id, d.handler, d.state, d.attempts, d.due_at, d.received_at, d.last_error is not null,
    d.scope, d.message_id, d.kind, d.`key`, d.headers, d.payload, d.not_before
from {schema}.delivery d
where d.identity = ?
order by d.handler
