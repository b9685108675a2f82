-- purge_seen.sql: forgets old ids with entries in (?3, ?4] of which no delivery has a row left
delete from {prefix}seen
where entry > ?3 and entry <= ?4 and seen_at < {now} - ?2
  and not exists (
      select 1 from {prefix}delivery as delivery
      where delivery.identity = {prefix}seen.identity
  )
  and (seq is null
    or seq <= (select min(position) from {prefix}cursor as cursor where cursor.lane = {prefix}seen.lane)
    or not exists (
        select 1 from {prefix}log as log where log.place = ({prefix}seen.lane << 48) + {prefix}seen.seq
    ))
returning 1
