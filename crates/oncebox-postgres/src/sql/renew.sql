-- renew.sql: locks the leased delivery rows that are still ours, by id
with mine as materialized (
    select d.id
    from {schema}.delivery d
    join unnest($3::bigint[], $4::bigint[], $5::integer[]) as g (id, token, attempt)
        on d.id = g.id and d.token = g.token and d.attempts = g.attempt
    where d.handler = $2 and d.state = 0
    order by d.id
    for update of d
)
update {schema}.delivery d
set due_at = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 + $6
from mine
where d.id = mine.id
returning d.id, d.token, d.attempts
