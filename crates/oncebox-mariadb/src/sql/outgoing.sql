-- outgoing.sql: locks nothing; of one sink and one state (0 waiting, 1 failed, 2 dead), after a number, so many at most
select o.seq, o.sink, o.attempts, o.state, o.due_at, o.created_at, o.last_error, o.scope, o.id, o.kind, o.`key`
from {schema}.outbox o force index (outbox_state)
where o.sink = ? and o.state = ? and o.seq > ?
order by o.seq
limit ?
