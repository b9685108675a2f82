-- count_purgeable.sql: locks nothing; how many ids, messages and other rows a purge would remove by now
with bounds as (
    select {now} - ? as keep, {now} - ? as payload, {now} div 60000000 - 2880 as first_minute
),
done as (select c.lane, min(c.position) as position from {schema}.cursor c group by c.lane)
select
    (select count(*) from {schema}.seen s cross join bounds left join done on done.lane = s.lane
     where s.seen_at < bounds.keep
       and (s.seq < 0 or s.seq <= done.position
           or not exists (select 1 from {schema}.log l where l.lane = s.lane and l.seq = s.seq))
       and not exists (
           select 1 from {schema}.delivery d
           where d.identity = s.identity and not (d.state = 4 and d.due_at < bounds.keep)
       )),
    (select count(*) from {schema}.log l join done on done.lane = l.lane and l.seq <= done.position
     cross join bounds
     where l.received_at < bounds.payload),
    (select count(*) from {schema}.delivery d cross join bounds where d.state = 4 and d.due_at < bounds.keep)
    + (select count(*) from {schema}.attempt a cross join bounds
       where a.at < bounds.keep
         and not exists (
             select 1 from {schema}.delivery d
             where d.identity = a.identity and d.handler = a.handler
               and not (d.state = 4 and d.due_at < bounds.keep)
         ))
    + (select count(*) from {schema}.conflict c cross join bounds where c.received_at < bounds.keep)
    + (select count(*) from {schema}.counter c cross join bounds where c.minute > 0 and c.minute < bounds.first_minute)
    + (select count(*) from {schema}.response r where r.expires_at <= {now} and r.leased_until <= {now})
