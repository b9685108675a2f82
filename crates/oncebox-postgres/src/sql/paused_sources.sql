-- paused_sources.sql: locks nothing
select name from {schema}.source where paused order by name
