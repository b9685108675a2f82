-- history.sql: locks nothing
select d.id, a.attempt, a.at, a.error
from {schema}.delivery d
join {schema}.attempt a on a.identity = d.identity and a.handler = d.handler
where d.id = any($1::bigint[])
order by a.id
