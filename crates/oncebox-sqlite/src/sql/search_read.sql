-- search_read.sql: the messages at some places (a list), locks nothing
select log.seq, log.received_at, log.scope, log.id, log.kind, log.key, log.headers, log.payload, log.not_before
from json_each(?1) as asked
cross join {prefix}log as log on log.place = asked.value
