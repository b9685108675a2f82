-- overdue.sql: deliveries that were due before ?2 microseconds ago: at most 1,000 of each handler; locks nothing
select handler.name,
    (select count(*) from (
        select 1 from {prefix}delivery as delivery
        where delivery.handler = handler.name and delivery.state in (0, 2) and delivery.due_at < {now} - ?2
        limit 1000
    )) as overdue,
    {now} - (
        select min(due_at) from {prefix}delivery as delivery
        where delivery.handler = handler.name and delivery.state in (0, 2)
    )
from {prefix}handler as handler
where overdue > 0
order by handler.name
