-- count_purgeable.sql: locks nothing; how many ids, messages and other rows a purge would remove by now
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
floor as materialized (
    select c.lane, min(c.position) as position from {schema}.cursor c group by c.lane
),
kept as materialized (
    select d.identity, d.handler from {schema}.delivery d cross join clock
    where not (d.state = 4 and d.due_at < clock.now - $2)
)
select
    (select count(*) from {schema}.seen s left join floor f on f.lane = s.lane
     where s.seen_at < (select now from clock) - $2
       and (s.seq is null or s.seq <= f.position)
       and not exists (select 1 from kept k where k.identity = s.identity)) as ids,
    (select count(*) from floor f join {schema}.log l on l.lane = f.lane and l.seq <= f.position
     where l.received_at < (select now from clock) - $3) as messages,
    (select count(*) from {schema}.delivery d where d.state = 4 and d.due_at < (select now from clock) - $2)
    + (select count(*) from {schema}.attempt a
       where a.at < (select now from clock) - $2
         and not exists (select 1 from kept k where k.identity = a.identity and k.handler = a.handler))
    + (select count(*) from {schema}.conflict c where c.received_at < (select now from clock) - $2)
    + (select count(*) from {schema}.counter c
       where c.minute > 0 and c.minute < (select now from clock) / 60000000 - 2880)
    + (select count(*) from {schema}.response r
       where r.expires_at <= (select now from clock) and r.leased_until <= (select now from clock)) as others
