-- read_replay.sql: one replay, locks nothing
select id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at from {prefix}replay where id = ?1
