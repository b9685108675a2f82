-- cursors.sql: locks nothing
select handler, lane, position from {schema}.cursor order by handler, lane
