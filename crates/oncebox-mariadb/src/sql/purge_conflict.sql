-- purge_conflict.sql: locks the conflict rows it removes, by time
delete from {schema}.conflict where received_at < {now} - ? order by received_at limit ?
