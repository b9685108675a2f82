-- sweep_seen.sql: locks nothing; the next ids, and which of them are old and of no use to anyone
select s.identity, coalesce(
    s.seen_at < {now} - ?
    and (s.seq < 0 or s.seq <= (select min(c.position) from {schema}.cursor c where c.lane = s.lane)
        or not exists (select 1 from {schema}.log l where l.lane = s.lane and l.seq = s.seq))
    and not exists (select 1 from {schema}.delivery d where d.identity = s.identity), false)
from {schema}.seen s force index (primary)
where s.identity > ?
order by s.identity
limit ?
