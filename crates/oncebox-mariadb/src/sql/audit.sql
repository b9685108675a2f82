-- audit.sql: locks nothing
select number, at, actor, action, target, details
from {schema}.audit
where ? is null or number < ?
order by number desc
limit ?
