-- receive_new.sql: locks the head row until the commit, then inserts into seen (by identity) and log
-- For messages that are all expected to be new: a known id is an error (23505), and nothing is stored. Half the price
-- of `on conflict`, which looks into the index twice and writes twice.
-- Answers the seq before the first message, the time, and whether the log still has the message $14 of the time $15 at
-- ($12, $13), where this process appended last.
-- A column that is the same in every row comes as a list of one, a column of nulls as an empty list.
-- `limit 1` tells the planner that head has one row; without statistics it guesses 2,000, and so a cost that starts JIT.
with head as (
    update {schema}.head
    set seq = seq + cardinality($2::uuid[])
    returning seq - cardinality($2::uuid[]) as base, (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now
),
fresh as (
    insert into {schema}.seen (identity, fingerprint, seen_at, seq, lane)
    select a.identity, a.fingerprint, head.now, head.base + a.ordinal, a.lane
    from (select base, now from head limit 1) as head
    cross join unnest($2::uuid[], $3::uuid[], $4::smallint[]) with ordinality
        as a (identity, fingerprint, lane, ordinal)
    order by a.identity
),
appended as (
    insert into {schema}.log (lane, seq, identity, scope, id, kind, key, headers, payload, not_before, received_at)
    select a.lane, head.base + a.ordinal, a.identity, coalesce(a.scope, head.scope), a.id,
        coalesce(a.kind, head.kind), a.key, coalesce(a.headers, head.headers), a.payload, a.not_before, head.now
    from (
        select base, now, ($6::text[])[1] as scope, ($8::text[])[1] as kind, ($10::text[])[1] as headers
        from head limit 1
    ) as head
    cross join unnest(
        $2::uuid[], $4::smallint[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::bytea[]
    ) with ordinality as a (identity, lane, not_before, scope, id, kind, key, headers, payload, ordinal)
)
select base, now,
    exists (
        select 1 from {schema}.log l
        where l.lane = $12 and l.seq = $13 and l.identity = $14 and l.received_at = $15
    ) as follows
from head
