-- handlers.sql: locks nothing
select h.name, h.kinds, h.paused, (select n.seq from {schema}.head n) from {schema}.handler h order by h.name
