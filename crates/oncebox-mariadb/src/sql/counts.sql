-- counts.sql: locks nothing
select handler, name, value from {schema}.counter where minute = 0 order by handler, name
