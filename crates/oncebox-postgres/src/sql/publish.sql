-- publish.sql: locks only the rows it inserts
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
hint as materialized (select case when $11 then pg_notify($12, '')::text end as sent),
written as (
    insert into {schema}.outbox (sink, lane, scope, id, kind, key, headers, payload, not_before, due_at, created_at)
    select g.sink, g.lane, g.scope, g.id, g.kind, g.key, g.headers, g.payload, g.not_before,
        greatest(g.not_before, clock.now), clock.now
    from clock cross join unnest(
        $2::text[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bytea[], $10::bigint[]
    ) with ordinality as g (sink, lane, scope, id, kind, key, headers, payload, not_before, ordinal)
    where $13::text is null or current_setting('oncebox.tx', true) = $13
    order by g.ordinal
    returning seq
)
select count(*), (select count(sent) from hint) from written
