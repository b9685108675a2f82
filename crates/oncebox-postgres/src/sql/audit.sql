-- audit.sql: locks nothing
select number, at, actor, action, target, details
from {schema}.audit
where $1::bigint is null or number < $1
order by number desc
limit $2
