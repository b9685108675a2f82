-- settle_outgoing.sql: notes what was not sent; ?4 is a list of [seq, delay, error, dead]
update {prefix}outbox
set attempts = attempts + 1, due_at = {now} + (unsent.value ->> 1), last_error = unsent.value ->> 2,
    dead = unsent.value ->> 3
from json_each(?4) as unsent
where {prefix}outbox.seq = unsent.value ->> 0 and {prefix}outbox.sink = ?2
  and {prefix}outbox.lane in (select lane from {prefix}relay where sink = ?2 and token = ?3)
