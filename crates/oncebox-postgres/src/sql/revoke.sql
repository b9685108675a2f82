-- revoke.sql: locks nothing; ends a session only while it is still in the transaction that is meant
select pg_terminate_backend(a.pid)
from pg_stat_activity a
where a.pid = $1 and (extract(epoch from a.xact_start) * 1000000)::bigint = $2
