-- purge_counters.sql: removes old minutes of counters
delete from {prefix}counter
where (handler, name, minute) in (
    select handler, name, minute from {prefix}counter
    where minute > 0 and minute < ({now} - ?2) / 60000000 limit ?3 + 0
)
returning 1
