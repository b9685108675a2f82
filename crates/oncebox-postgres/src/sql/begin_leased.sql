-- begin_leased.sql: locks the leased delivery rows that are still ours, skips locked ones
with locked as materialized (
    select d.id
    from {schema}.delivery d
    join unnest($2::bigint[], $3::bigint[], $4::integer[]) as g (id, token, attempt)
        on d.id = g.id and d.token = g.token and d.attempts = g.attempt
    where d.handler = $1 and d.state = 0
    for update of d skip locked
)
select
    (select count(*) from locked) as locked,
    pg_backend_pid() as pid,
    (extract(epoch from now()) * 1000000)::bigint as began_at
