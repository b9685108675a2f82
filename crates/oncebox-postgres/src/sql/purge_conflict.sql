-- purge_conflict.sql: locks the conflict rows it removes
delete from {schema}.conflict c
using (
    select o.identity, o.fingerprint from {schema}.conflict o
    where o.received_at < (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 - $2
    order by o.received_at
    limit $3
) as old
where c.identity = old.identity and c.fingerprint = old.fingerprint
