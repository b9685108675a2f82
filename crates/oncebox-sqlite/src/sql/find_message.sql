-- find_message.sql: what is remembered of one id, and what the log has of it; locks nothing
select seen.seen_at, seen.seq, seen.lane, log.received_at,
    log.scope, log.id, log.kind, log.key, log.headers, log.payload, log.not_before
from {prefix}seen as seen
left join {prefix}log as log on log.place = (seen.lane << 48) + seen.seq
where seen.identity = ?1
