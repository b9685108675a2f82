-- is_writable.sql: locks nothing
select pg_is_in_recovery() as replica, current_setting('transaction_read_only') = 'on' as read_only
