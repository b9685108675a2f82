-- paused_sources.sql: the sources that are paused, locks nothing
select name from {prefix}source where paused = 1 order by name
