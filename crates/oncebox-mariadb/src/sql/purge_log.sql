-- purge_log.sql: locks the log rows it removes
delete from {schema}.log where lane = ? and seq <= ? and received_at < {now} - ?
