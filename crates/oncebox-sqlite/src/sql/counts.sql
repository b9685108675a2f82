-- counts.sql: the running totals, locks nothing
select handler, name, value from {prefix}counter where minute = 0 order by handler, name
