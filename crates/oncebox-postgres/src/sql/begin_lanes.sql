-- begin_lanes.sql: locks the cursor rows of the claimed lanes, skips locked ones
-- First the keys of the next messages are picked over all lanes, then only those are read.
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
locked as materialized (
    select c.lane, c.position
    from {schema}.cursor c
    where c.handler = $2 and c.token = $3 and c.lane = any($4::smallint[])
    for update skip locked
),
next as materialized (
    select asked.ordinal, found.lane, found.seq
    from unnest($4::smallint[], $5::bigint[]) with ordinality as asked (lane, upto, ordinal)
    join locked on locked.lane = asked.lane
    cross join lateral (
        select l.lane, l.seq
        from {schema}.log l
        where l.lane = locked.lane and l.seq > locked.position and l.seq <= asked.upto
        order by l.seq
        limit $6
    ) as found
    order by asked.ordinal, found.seq
    limit $6
),
message as (
    select next.ordinal, l.lane, l.seq, l.scope, l.id, l.kind, l.key, l.headers, l.payload, l.not_before,
        (l.kind = any($7::text[]) or l.kind ^@ any($8::text[])) as wanted
    from next join {schema}.log l on l.lane = next.lane and l.seq = next.seq
)
select
    (select count(*) from locked) as locked,
    pg_backend_pid() as pid,
    (extract(epoch from now()) * 1000000)::bigint as began_at,
    m.lane, m.seq, coalesce(m.wanted, false) as wanted,
    coalesce(m.not_before > clock.now, false) as scheduled,
    coalesce($9 and m.key is not null and m.wanted and (
        select d.id from {schema}.delivery d
        where d.handler = $2 and d.key = m.key and d.state in (0, 1)
        limit 1
    ) is not null, false) as held,
    case when m.wanted then m.scope end as scope,
    case when m.wanted then m.id end as id,
    case when m.wanted then m.kind end as kind,
    case when m.wanted then m.key end as key,
    case when m.wanted then m.headers end as headers,
    case when m.wanted then m.payload end as payload,
    m.not_before
from clock left join message m on true
order by m.ordinal, m.seq
