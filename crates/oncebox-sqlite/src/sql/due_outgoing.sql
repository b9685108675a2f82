-- due_outgoing.sql: what one relay may send next; the write lock keeps the lanes
select waiting.seq, waiting.attempts, waiting.lane, waiting.sink,
    waiting.scope, waiting.id, waiting.kind, waiting.key, waiting.headers, waiting.payload, waiting.not_before
from {prefix}outbox as waiting
where waiting.sink = ?2 and waiting.dead = 0
  and (waiting.due_at <= {now} or waiting.due_at = waiting.created_at)
  and waiting.lane not in (
      select lane from {prefix}relay
      where sink = ?2 and token is not null and token <> ?3 and leased_until > {now}
  )
  and not exists (
      select 1 from {prefix}outbox as earlier
      where earlier.sink = ?2 and earlier.key = waiting.key and earlier.seq < waiting.seq
        and earlier.dead = 0 and earlier.attempts > 0 and earlier.due_at > {now}
  )
order by waiting.seq
limit ?4 + 0
