-- start_replay.sql: writes a replay down
insert into {prefix}replay (filter, rate, actor, matched, upto, paid_at, started_at)
values (?2, ?3, ?4, ?5, coalesce((select max(id) from {prefix}delivery), 0), {now}, {now})
returning id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at
