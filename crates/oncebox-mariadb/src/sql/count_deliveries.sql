-- count_deliveries.sql: locks nothing; counts up to the last parameter
select count(*) from (
select 1
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
limit ?
) n
