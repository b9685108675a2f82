-- conflicts.sql: the newest conflicts, locks nothing
select received_at, scope, message_id, kind, key, headers, payload, not_before
from {prefix}conflict
order by received_at desc, rowid desc
limit ?1 + 0
