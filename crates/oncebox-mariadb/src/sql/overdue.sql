-- overdue.sql: locks nothing; reads at most 1,000 due rows of the handler
select count(*), {now} - min(r.ready_at)
from (
    select d.ready_at from {schema}.delivery d force index (delivery_due)
    where d.handler = ? and d.ready_at < {now} - ?
    order by d.ready_at
    limit 1000
) r
