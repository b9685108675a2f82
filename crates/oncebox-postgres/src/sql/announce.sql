-- announce.sql: locks nothing
select pg_notify($1, '')
