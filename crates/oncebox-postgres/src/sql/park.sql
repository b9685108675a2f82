-- park.sql: locks only the rows it inserts
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
given as materialized (
    select *
    from unnest(
        $2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bytea[], $10::bigint[],
        $11::smallint[], $12::integer[], $13::bigint[], $14::bigint[], $15::text[]
    ) with ordinality as g (
        handler, identity, scope, message_id, kind, key, headers, payload, not_before,
        state, attempts, delay, token, error, ordinal
    )
    where current_setting('oncebox.tx', true) = $16
),
parked as (
    insert into {schema}.delivery (
        handler, identity, scope, message_id, kind, key, headers, payload, not_before, received_at,
        state, attempts, due_at, token, last_error
    )
    select
        g.handler, g.identity, g.scope, g.message_id, g.kind, g.key, g.headers, g.payload, g.not_before,
        coalesce((select s.seen_at from {schema}.seen s where s.identity = g.identity), clock.now),
        g.state, g.attempts, case when g.state = 2 then coalesce(g.not_before, clock.now) else clock.now + g.delay end,
        g.token, g.error
    from given g cross join clock
    order by g.ordinal
    returning id, identity, handler
),
history as (
    insert into {schema}.attempt (identity, handler, attempt, at, error)
    select g.identity, g.handler, g.attempts, clock.now, g.error
    from given g cross join clock
    where g.error is not null
    order by g.ordinal
)
select parked.id
from parked join given g on g.identity = parked.identity and g.handler = parked.handler
order by g.ordinal
