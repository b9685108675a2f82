-- standing.sql: locks nothing
select h.name, h.kinds, c.position
from {schema}.handler h
left join {schema}.cursor c on c.handler = h.name and c.lane = ?
order by h.name
