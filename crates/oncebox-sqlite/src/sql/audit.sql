-- audit.sql: changes, newest first, locks nothing
select number, at, actor, action, target, details
from {prefix}audit
where ?1 is null or number < ?1
order by number desc
limit ?2 + 0
