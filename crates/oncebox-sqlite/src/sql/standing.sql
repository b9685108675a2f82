-- standing.sql: every handler and its cursor in one lane, locks nothing
select handler.name, handler.kinds, cursor.position
from {prefix}handler as handler
left join {prefix}cursor as cursor on cursor.handler = handler.name and cursor.lane = ?1
order by handler.name
