-- settle_outgoing.sql: locks the outbox rows named, by seq, and, to give them back, the relay rows of this token
-- outcome: 0 confirmed, 1 retry, 2 dead
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
given as materialized (
    select g.seq, g.outcome, g.delay, g.error
    from unnest($4::bigint[], $5::smallint[], $6::bigint[], $7::text[]) as g (seq, outcome, delay, error)
),
mine as materialized (
    select o.seq, given.outcome, given.delay, given.error
    from {schema}.outbox o
    join given on given.seq = o.seq
    -- Said twice, so that the rows are found by their seq and not by reading the whole outbox.
    where o.seq = any ($4::bigint[]) and o.sink = $2 and (given.outcome = 0 or exists (
        select 1 from {schema}.relay r where r.sink = $2 and r.lane = o.lane and r.token = $3
    ))
    order by o.seq
    for update of o
),
gone as (
    delete from {schema}.outbox o using mine where o.seq = mine.seq and mine.outcome = 0
),
changed as (
    update {schema}.outbox o
    set attempts = o.attempts + 1,
        due_at = clock.now + mine.delay,
        dead = mine.outcome = 2,
        last_error = mine.error
    from mine cross join clock
    where o.seq = mine.seq and mine.outcome <> 0
)
update {schema}.relay set token = null, leased_until = 0 where sink = $2 and token = $3 and $8
