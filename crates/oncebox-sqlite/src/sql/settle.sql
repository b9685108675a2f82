-- settle.sql: ends leases that are still held; ?3 is a list of [id, token, attempt, state, delay, error, uncounted]
update {prefix}delivery
set state = settled.value ->> 3, token = null, due_at = {now} + (settled.value ->> 4),
    attempts = attempts - (settled.value ->> 6), last_error = coalesce(settled.value ->> 5, last_error)
from json_each(?3) as settled
-- The signs keep SQLite from walking over all ready rows instead of the list.
where {prefix}delivery.id = settled.value ->> 0 and +{prefix}delivery.handler = ?2 and +{prefix}delivery.state = 0
  and {prefix}delivery.token = settled.value ->> 1 and {prefix}delivery.attempts = settled.value ->> 2
returning key, state
