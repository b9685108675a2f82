-- deliveries.sql: locks nothing; no more rows once those before have $15 bytes of payloads
with matching as materialized (
    select d.id, octet_length(d.payload)::bigint as bytes
    from {schema}.delivery d
    where (cardinality($1::bigint[]) = 0 or d.id = any($1::bigint[]))
      and ($2::text is null or d.handler = $2)
      and ($3::smallint is null or d.state = $3)
      and ($4::boolean is null or (d.last_error is not null) = $4)
      and ($5::text is null or d.scope = $5)
      and ($6::text is null or d.message_id = $6)
      and ($7::text is null or d.kind = $7)
      and ($8::text is null or d.key = $8)
      and ($9::text is null or position($9 in d.last_error) > 0)
      and ($10::bigint is null or d.received_at >= $10)
      and ($11::bigint is null or d.received_at < $11)
      and ($12::bigint is null or d.id > $12)
      and ($13::bigint is null or d.id <= $13)
    order by d.id
    limit $14
),
page as (
    select m.id, sum(m.bytes) over (order by m.id rows unbounded preceding) - m.bytes as before from matching m
)
select d.id, d.handler, d.state, d.attempts, d.due_at, d.received_at, d.last_error is not null as failed,
    d.scope, d.message_id, d.kind, d.key, d.headers, d.payload, d.not_before
from page p
cross join lateral (
    select r.id, r.handler, r.state, r.attempts, r.due_at, r.received_at, r.last_error, r.scope, r.message_id, r.kind,
        r.key, r.headers, r.payload, r.not_before
    from {schema}.delivery r
    where r.id = p.id
    limit 1
) as d
where $15::bigint is null or p.before < $15
order by d.id
