-- begin_inline.sql: inserts into seen by identity, waiting for rivals that have not committed
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
arrival as materialized (
    select a.ordinal, a.identity, a.fingerprint, a.not_before
    from unnest($2::uuid[], $3::uuid[], $4::bigint[]) with ordinality as a (identity, fingerprint, not_before, ordinal)
),
fresh as (
    insert into {schema}.seen (identity, fingerprint, seen_at)
    select a.identity, a.fingerprint, clock.now
    from arrival a cross join clock
    order by a.identity
    on conflict (identity) do nothing
    returning identity
),
held as materialized (
    select distinct d.handler, d.key
    from {schema}.delivery d
    where d.handler = any($5::text[]) and d.key = any($6::text[]) and d.state in (0, 1)
)
select
    fresh.identity is not null as is_new,
    coalesce(a.not_before > clock.now, false) as scheduled,
    pg_backend_pid() as pid,
    (extract(epoch from now()) * 1000000)::bigint as began_at,
    (select coalesce(array_agg(held.handler order by held.handler, held.key), '{}') from held) as held_handlers,
    (select coalesce(array_agg(held.key order by held.handler, held.key), '{}') from held) as held_keys
from clock cross join arrival a left join fresh on fresh.identity = a.identity
order by a.ordinal
