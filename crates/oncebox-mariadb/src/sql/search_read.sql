-- search_read.sql: locks nothing
select l.seq, l.received_at, l.scope, l.id, l.kind, l.`key`, l.headers, l.payload, l.not_before
from json_table(?, '$[*]' columns (lane smallint path '$[0]', seq bigint path '$[1]')) g
straight_join {schema}.log l force index (primary) on l.lane = g.lane and l.seq = g.seq
