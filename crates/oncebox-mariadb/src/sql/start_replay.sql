-- start_replay.sql: locks only the row it inserts
insert into {schema}.replay (filter, rate, actor, matched, upto, paid_at, started_at)
select ?, ?, ?, ?, coalesce((select max(d.id) from {schema}.delivery d), 0), n.now, n.now
from (select {now} as now) n
returning id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at
