-- read_outgoing.sql: locks nothing; what is due in the lanes of one relay
-- A key has all its messages in one lane, and none may go before an earlier one that waits for its next try.
with blocked as (
    select o.`key` as name, min(o.seq) as seq
    from {schema}.outbox o force index (outbox_state)
    where o.sink = ? and o.state = 1 and o.`key` is not null and o.due_at > {now}
    group by o.`key`
),
mine as (select r.lane from {schema}.relay r where r.sink = ? and r.token = ?)
select o.seq, o.attempts, o.sink, o.scope, o.id, o.kind, o.`key`, o.headers, o.payload, o.not_before
from {schema}.outbox o force index (outbox_state)
where o.sink = ? and o.state in (0, 1) and o.due_at <= {now}
  and o.lane in (select mine.lane from mine)
  and not exists (select 1 from blocked b where b.name = o.`key` and b.seq < o.seq)
order by o.seq
limit ?
