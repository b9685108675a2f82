-- find_message.sql: locks nothing
select s.seen_at, s.seq, s.lane, l.received_at, l.scope, l.id, l.kind, l.key, l.headers, l.payload, l.not_before
from {schema}.seen s
left join {schema}.log l on l.lane = s.lane and l.seq = s.seq
where s.identity = $1
