-- settle.sql: locks the leased delivery rows that are still ours, by id, and the next held row of each of their keys
-- outcome: 0 done, 1 retry, 2 dead, 3 returned
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
mine as materialized (
    select d.id, d.key, d.identity, g.token, g.attempt, g.outcome, g.delay, g.error
    from {schema}.delivery d
    join unnest($3::bigint[], $4::bigint[], $5::integer[], $6::smallint[], $7::bigint[], $8::text[])
        as g (id, token, attempt, outcome, delay, error)
        on d.id = g.id and d.token = g.token and d.attempts = g.attempt
    where d.handler = $2 and d.state = 0
    order by d.id
    for update of d
),
gone as (
    delete from {schema}.delivery d using mine where d.id = mine.id and mine.outcome = 0
),
changed as (
    update {schema}.delivery d
    set state = case when mine.outcome = 2 then 3 else 0 end,
        token = null,
        attempts = case when mine.outcome = 3 then d.attempts - 1 else d.attempts end,
        due_at = clock.now + mine.delay,
        last_error = coalesce(mine.error, d.last_error)
    from mine cross join clock
    where d.id = mine.id and mine.outcome <> 0
),
history as (
    insert into {schema}.attempt (identity, handler, attempt, at, error)
    select mine.identity, $2, mine.attempt, clock.now, mine.error
    from mine cross join clock
    where mine.outcome in (1, 2)
    order by mine.id
),
promoted as (
    update {schema}.delivery p
    set state = 0, due_at = clock.now, token = null
    from clock
    where p.state = 1
      and p.id in (
        select (
            select h.id from {schema}.delivery h
            where h.handler = $2 and h.key = k.key and h.state = 1
            order by h.id limit 1
        )
        from (select distinct mine.key from mine where mine.key is not null and mine.outcome in (0, 2)) as k
        where (select h.ordered from {schema}.handler h where h.name = $2)
          and not exists (
            select 1 from {schema}.delivery a
            where a.handler = $2 and a.key = k.key and a.state = 0
              and a.id not in (select mine.id from mine where mine.outcome in (0, 2))
          )
    )
)
select id, token, attempt from mine
