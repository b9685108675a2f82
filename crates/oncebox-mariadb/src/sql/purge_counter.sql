-- purge_counter.sql: locks the counter rows it removes, by minute
delete from {schema}.counter
where minute > 0 and minute < {now} div 60000000 - 2880
order by minute
limit ?
