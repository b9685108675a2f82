-- list_replays.sql: replays, newest first, locks nothing
select id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at from {prefix}replay where state = 0 or not ?1 order by id desc limit ?2 + 0
