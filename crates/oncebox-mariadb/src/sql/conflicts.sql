-- conflicts.sql: locks nothing
select received_at, scope, message_id, kind, `key`, headers, payload, not_before
from {schema}.conflict
order by received_at desc, identity
limit ?
