-- begin_plain.sql: locks nothing
select pg_backend_pid() as pid, (extract(epoch from now()) * 1000000)::bigint as began_at
