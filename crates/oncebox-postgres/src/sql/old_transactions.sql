-- old_transactions.sql: locks nothing; transactions that began before $2 microseconds ago and hold old rows back
select a.pid::bigint, coalesce(a.application_name, ''), coalesce(a.usename::text, ''), coalesce(a.state, ''),
    (extract(epoch from clock_timestamp() - a.xact_start) * 1000000)::bigint + $1,
    coalesce(age(a.backend_xmin), age(a.backend_xid))::bigint
from pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.xact_start is not null
  and (a.backend_xmin is not null or a.backend_xid is not null)
  and (extract(epoch from clock_timestamp() - a.xact_start) * 1000000)::bigint + $1 > $2
order by a.xact_start
limit 10
