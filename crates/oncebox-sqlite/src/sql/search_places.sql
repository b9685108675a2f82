-- search_places.sql: places in a short range of each lane (a list): those after ?2 up to ?3; locks nothing
select log.seq, log.place
from json_each(?1) as lane
cross join {prefix}log as log
    on log.place > (lane.value << 48) + ?2 and log.place <= (lane.value << 48) + ?3
where (?4 is null or log.scope = ?4)
  and (?5 is null or log.id = ?5)
  and (?6 is null or log.kind = ?6)
  and (?7 is null or substr(log.kind, 1, length(?7)) = ?7)
  and (?8 is null or log.key = ?8)
  and (?9 is null or log.received_at >= ?9)
  and (?10 is null or log.received_at < ?10)
order by log.seq desc
limit ?11 + 0
