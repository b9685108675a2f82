-- discard_history.sql: notes why dead letters (a list of ids) are given up
insert into {prefix}attempt (identity, handler, attempt, at, error)
select identity, handler, attempts, {now}, ?3
from {prefix}delivery
where id in (select value from json_each(?2)) and state = 3
