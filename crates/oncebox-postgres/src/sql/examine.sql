-- examine.sql: locks nothing; settings of the server and how full it is
select current_setting('fsync', true), current_setting('full_page_writes', true),
    current_setting('synchronous_commit', true), current_setting('autovacuum', true),
    pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
    current_setting('max_connections')::bigint,
    (select count(*) from pg_stat_activity where backend_type like 'client %'),
    (select count(*) from pg_prepared_xacts where database = current_database()),
    nullif(nullif(current_setting('server_encoding', true), 'UTF8'), 'SQL_ASCII')
