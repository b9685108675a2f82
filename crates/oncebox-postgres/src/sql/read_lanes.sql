-- read_lanes.sql: locks nothing; the log is never updated, and whoever reads on here has locked the cursors
-- Each lane's rows come by seq, at most $5 of each lane. Which lane comes first is not said: sorting such wide rows costs
-- as much as reading them, and the reader puts lanes in order by itself.
-- The limit is hidden from the planner: where it knows it and takes a lane for short, it rather reads and sorts the whole
-- lane, every time, than follow the index.
-- state: 0 of another kind, 1 to be run, 2 scheduled for later, 3 held behind its key.
select m.lane, m.seq,
    case
        when not m.wanted then 0
        when m.not_before > (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 then 2
        when $8 and m.key is not null and (
            select d.id from {schema}.delivery d
            where d.handler = $9 and d.key = m.key and d.state in (0, 1)
            limit 1
        ) is not null then 3
        else 1
    end::smallint as state,
    case when m.wanted then m.scope end as scope,
    case when m.wanted then m.id end as id,
    case when m.wanted then m.kind end as kind,
    case when m.wanted then m.key end as key,
    case when m.wanted then m.headers end as headers,
    case when m.wanted then m.payload end as payload,
    case when m.wanted then m.not_before end as not_before
from unnest($2::smallint[], $3::bigint[], $4::bigint[]) as asked (lane, position, upto)
cross join lateral (
    select l.lane, l.seq, l.scope, l.id, l.kind, l.key, l.headers, l.payload, l.not_before,
        (l.kind = any($6::text[]) or l.kind ^@ any($7::text[])) as wanted
    from {schema}.log l
    where l.lane = asked.lane and l.seq > asked.position and l.seq <= asked.upto
    order by l.seq
    limit (select $5::bigint)
) as m
