-- deliveries.sql: locks nothing; no more rows once those before have so many bytes of payloads
with matching as (
    select d.id, length(d.payload) as bytes
    from {schema}.delivery d
    where (? is null or d.id in (select g.id from json_table(?, '$[*]' columns (id bigint path '$')) g))
      and (? is null or d.handler = ?)
      and (? is null or d.scope = ?)
      and (? is null or d.message_id = ?)
      and (? is null or d.kind = ?)
      and (? is null or d.`key` = ?)
      and (? is null or locate(?, d.last_error) > 0)
      and (? is null or d.state = ?)
      and (? is null or (d.last_error is not null) = ?)
      and (? is null or d.received_at >= ?)
      and (? is null or d.received_at < ?)
      and (? is null or d.id > ?)
      and (? is null or d.id <= ?)
    order by d.id
    limit ?
),
page as (
    select m.id, sum(m.bytes) over (order by m.id rows unbounded preceding) - m.bytes as earlier from matching m
)
select d.id, d.handler, d.state, d.attempts, d.due_at, d.received_at, d.last_error is not null,
    d.scope, d.message_id, d.kind, d.`key`, d.headers, d.payload, d.not_before
from page p
straight_join {schema}.delivery d force index (primary) on d.id = p.id
where ? is null or p.earlier < ?
order by d.id
