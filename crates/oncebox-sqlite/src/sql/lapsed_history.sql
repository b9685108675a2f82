-- lapsed_history.sql: notes the unfinished attempts of deliveries whose lease ran out
insert into {prefix}attempt (identity, handler, attempt, at, error)
select identity, handler, attempts, {now}, ?3
from {prefix}delivery
where id in (select value from json_each(?2)) and token is not null
