-- begin_response.sql: locks one claim, for as long as the transaction lasts
with locked as materialized (
    select r.identity from {schema}.response r
    where r.identity = $1 and r.token = $2 and r.status is null
    for update
)
select
    (select count(*) from locked) as locked,
    pg_backend_pid() as pid,
    (extract(epoch from now()) * 1000000)::bigint as began_at
