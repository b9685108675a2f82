-- history.sql: locks nothing
select d.id, a.attempt, a.at, a.error
from json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.delivery d force index (primary) on d.id = g.id
straight_join {schema}.attempt a on a.identity = d.identity and a.handler = d.handler
order by a.id
