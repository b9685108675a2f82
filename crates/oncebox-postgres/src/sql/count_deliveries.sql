-- count_deliveries.sql: locks nothing; counts up to $14
select count(*) from (
select 1
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
limit $14
) as n
