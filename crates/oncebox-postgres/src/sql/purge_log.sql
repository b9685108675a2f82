-- purge_log.sql: locks the log rows it removes; a lane whose first row is young costs one look
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
floor as materialized (
    select c.lane, min(c.position) as position from {schema}.cursor c group by c.lane
),
old as materialized (
    select first.lane, first.seq
    from clock cross join floor f
    cross join lateral (
        select l.lane, l.seq, l.received_at
        from {schema}.log l
        where l.lane = f.lane and l.seq <= f.position
        order by l.seq
        limit case when (
            select l.received_at from {schema}.log l
            where l.lane = f.lane and l.seq <= f.position
            order by l.seq limit 1
        ) < clock.now - $2 then $3 else 0 end
    ) as first
    where first.received_at < clock.now - $2
    limit $3
)
delete from {schema}.log l using old where l.lane = old.lane and l.seq = old.seq
