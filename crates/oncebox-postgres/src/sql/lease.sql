-- lease.sql: locks up to $4 due delivery rows of one handler, skips locked ones
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
running as materialized (
    select not exists (select 1 from {schema}.handler h where h.name = $2 and h.paused) as yes
),
due as materialized (
    select d.id, d.identity, d.due_at, d.token as lapsed, d.attempts
    from {schema}.delivery d cross join clock
    where d.handler = $2 and d.state in (0, 2) and d.due_at <= clock.now
      and (select yes from running)
      and (not $6 or d.state = 0 or d.key is null or not exists (
        select 1 from {schema}.delivery e
        where e.handler = $2 and e.key = d.key and e.state in (0, 1) and e.id < d.id
      ))
    order by d.due_at, d.id
    limit $4
    for update of d skip locked
),
taken as (
    update {schema}.delivery d
    set state = 0, token = $3, attempts = d.attempts + 1, due_at = clock.now + $5,
        last_error = case when due.lapsed is not null then $7 else d.last_error end
    from due cross join clock
    where d.id = due.id
    returning d.id, d.attempts, d.scope, d.message_id, d.kind, d.key, d.headers, d.payload, d.not_before,
        d.last_error, due.due_at as was_due_at
),
history as (
    insert into {schema}.attempt (identity, handler, attempt, at, error)
    select due.identity, $2, due.attempts, clock.now, $7
    from due cross join clock
    where due.lapsed is not null
)
select
    (
        select d.due_at from {schema}.delivery d
        where d.handler = $2 and d.state in (0, 2) and d.due_at > clock.now and (select yes from running)
        order by d.due_at limit 1
    ) - clock.now as next_due,
    t.id, t.attempts, t.scope, t.message_id, t.kind, t.key, t.headers, t.payload, t.not_before, t.last_error
from clock left join taken t on true
order by t.was_due_at, t.id
