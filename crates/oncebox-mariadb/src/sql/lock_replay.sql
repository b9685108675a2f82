-- lock_replay.sql: locks one replay row
select id, filter, rate, actor, state, matched, replayed, started_at, ended_at, position, upto, paid_at, {now}
from {schema}.replay where id = ? for update
