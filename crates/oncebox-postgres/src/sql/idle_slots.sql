-- idle_slots.sql: locks nothing; replication slots that nobody reads
select slot_name::text, coalesce(age(xmin), age(catalog_xmin))::bigint,
    case when pg_is_in_recovery() then null
        else pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint end
from pg_replication_slots
where not active and (restart_lsn is not null or xmin is not null or catalog_xmin is not null)
order by slot_name
