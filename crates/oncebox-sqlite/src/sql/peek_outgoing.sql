-- peek_outgoing.sql: whether anything may be sent, locks nothing
select exists (
    select 1 from {prefix}outbox as waiting
    where waiting.sink = ?2 and waiting.dead = 0
      and (waiting.due_at <= {now} or waiting.due_at = waiting.created_at)
)
