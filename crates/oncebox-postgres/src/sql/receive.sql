-- receive.sql: locks the head row until the commit, then inserts what is new into seen (by identity) and log
-- `limit 1` tells the planner that head has one row; without statistics it guesses 2,000, and so a cost that starts JIT.
with head as (
    update {schema}.head
    set seq = seq + cardinality($2::uuid[])
    returning seq - cardinality($2::uuid[]) as base, (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now
),
arrival as materialized (
    select ordinal, identity, fingerprint, lane, not_before, scope, id, kind, key, headers, payload
    from unnest(
        $2::uuid[], $3::uuid[], $4::bigint[], $5::smallint[], $6::bigint[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::text[], $12::bytea[]
    ) as a (identity, fingerprint, ordinal, lane, not_before, scope, id, kind, key, headers, payload)
),
fresh as (
    insert into {schema}.seen (identity, fingerprint, seen_at, seq, lane)
    select a.identity, a.fingerprint, head.now, head.base + a.ordinal, a.lane
    from (select base, now from head limit 1) as head cross join arrival a
    order by a.identity
    on conflict (identity) do nothing
    returning identity, seq, seen_at
),
appended as (
    insert into {schema}.log (lane, seq, identity, scope, id, kind, key, headers, payload, not_before, received_at)
    select a.lane, fresh.seq, a.identity, a.scope, a.id, a.kind, a.key, a.headers, a.payload, a.not_before, fresh.seen_at
    from arrival a join fresh on fresh.identity = a.identity
)
select identity from fresh
