-- settings.sql: locks nothing
select version(), @@global.read_only, @@session.tx_read_only, @@session.autocommit,
    cast(@@innodb_flush_log_at_trx_commit as signed), @@log_bin, cast(@@sync_binlog as signed),
    @@session.binlog_format,
    coalesce((select v.variable_value = 'ON' from information_schema.global_variables v where v.variable_name = 'WSREP_ON'), false),
    @@session.tx_isolation, @@max_allowed_packet as packet
