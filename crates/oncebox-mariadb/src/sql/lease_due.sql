-- lease_due.sql: locks up to so many due delivery rows of one handler, skips locked ones
select d.id, d.attempts, d.token is not null, d.identity,
    d.scope, d.message_id, d.kind, d.`key`, d.headers, d.payload, d.not_before, d.last_error
from {schema}.delivery d force index (delivery_due)
where d.handler = ? and d.ready_at <= {now}
  and not exists (select 1 from {schema}.handler h where h.name = ? and h.paused)
  and (not ? or d.state = 0 or d.`key` is null or not exists (
    select 1 from {schema}.delivery e
    where e.handler = ? and e.`key` = d.`key` and e.state in (0, 1) and e.id < d.id
  ))
order by d.ready_at, d.id
limit ?
for update skip locked
