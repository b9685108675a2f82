-- begin_lanes.sql: locks the cursor rows of the claimed lanes, skips locked ones
-- Lanes are read one after the other, in the order asked for, and not at all once there are enough messages.
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
locked as materialized (
    select c.lane, c.position
    from {schema}.cursor c
    where c.handler = $2 and c.token = $3 and c.lane = any($4::smallint[])
    for update skip locked
),
message as (
    select asked.ordinal, found.lane, found.seq, found.scope, found.id, found.kind, found.key, found.headers,
        found.payload, found.not_before, found.wanted
    from unnest($4::smallint[], $5::bigint[]) with ordinality as asked (lane, upto, ordinal)
    join locked on locked.lane = asked.lane
    cross join lateral (
        select l.lane, l.seq, l.scope, l.id, l.kind, l.key, l.headers, l.payload, l.not_before,
            (l.kind = any($7::text[]) or l.kind ^@ any($8::text[])) as wanted
        from {schema}.log l
        where l.lane = locked.lane and l.seq > locked.position and l.seq <= asked.upto
        order by l.seq
        limit $6
    ) as found
    order by asked.ordinal, found.seq
    limit $6
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
