-- settings.sql: locks nothing
select pg_is_in_recovery() as replica, current_setting('transaction_read_only') = 'on' as read_only,
    case
        when current_setting('fsync', true) = 'off' then 'fsync'
        when current_setting('synchronous_commit', true) = 'off' then 'synchronous_commit'
        when current_setting('full_page_writes', true) = 'off' then 'full_page_writes'
    end as relaxed,
    nullif(nullif(current_setting('server_encoding', true), 'UTF8'), 'SQL_ASCII') as encoding
