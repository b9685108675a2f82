-- replay.sql: locks the dead delivery rows named
update {schema}.delivery d
set state = case when d.key is not null and h.ordered then 1 else 0 end,
    attempts = 0, token = null, due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1, last_error = null
from (
    select o.id, coalesce((select h.ordered from {schema}.handler h where h.name = o.handler), false) as ordered
    from {schema}.delivery o
    where o.id = any($2::bigint[]) and o.state = 3
    order by o.id
    for update
) as h
where d.id = h.id and d.state = 3
