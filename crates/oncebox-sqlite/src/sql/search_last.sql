-- search_last.sql: the last message up to ?2 of all lanes (a list), locks nothing
select log.seq, log.received_at
from json_each(?1) as lane
cross join {prefix}log as log on log.place = (
    select max(place) from {prefix}log
    where place > lane.value << 48 and place <= (lane.value << 48) + ?2
)
order by log.seq desc
limit 1
