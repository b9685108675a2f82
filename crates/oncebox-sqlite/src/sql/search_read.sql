-- search_read.sql: the messages at some places (a list), none that has ?2 bytes of payloads before it; locks nothing
with asked as (
    select asked.key as number, log.place, length(log.payload) as bytes
    from json_each(?1) as asked
    cross join {prefix}log as log on log.place = asked.value
), page as (
    select place, sum(bytes) over (order by number rows unbounded preceding) - bytes as before from asked
)
select log.seq, log.received_at, log.scope, log.id, log.kind, log.key, log.headers, log.payload, log.not_before
from page
cross join {prefix}log as log on log.place = page.place
where page.before < ?2
