-- sweep_delivery.sql: locks nothing; the next deliveries, and which of them were discarded long ago
select d.id, d.state = 4 and d.due_at < {now} - ?
from {schema}.delivery d force index (primary)
where d.id > ?
order by d.id
limit ?
