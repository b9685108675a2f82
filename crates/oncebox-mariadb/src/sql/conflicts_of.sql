-- conflicts_of.sql: at most 100, locks nothing
select received_at, scope, message_id, kind, `key`, headers, payload, not_before
from {schema}.conflict
where identity = ?
order by received_at, fingerprint
limit 100
