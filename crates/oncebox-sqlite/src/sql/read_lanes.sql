-- read_lanes.sql: the next messages of lanes, locks nothing
-- ?2 handler, ?3 list of [lane, upto], ?4 limit, ?5 every kind, ?6 exact kinds, ?7 prefixes, ?8 look for held keys.
-- No `order by`: the cross join reads lane after lane as listed, each by place, and stops at the limit.
select log.lane, log.seq, log.not_before > {now},
    case when ?8 and log.key is not null then exists (
        select 1 from {prefix}delivery as delivery
        where delivery.handler = ?2 and delivery.key = log.key and delivery.state <= 2 and delivery.state in (0, 1)
    ) else 0 end,
    log.scope, log.id, log.kind, log.key, log.headers,
    case when ?5 or log.kind in (select value from json_each(?6)) or exists (
        select 1 from json_each(?7) as prefix where substr(log.kind, 1, length(prefix.value)) = prefix.value
    ) then log.payload end,
    log.not_before
from json_each(?3) as asked
cross join {prefix}cursor as cursor on cursor.handler = ?2 and cursor.lane = asked.value ->> 0
cross join {prefix}log as log
    on log.place > (cursor.lane << 48) + cursor.position
    and log.place <= (cursor.lane << 48) + coalesce(asked.value ->> 1, 281474976710655)
limit ?4 + 0
