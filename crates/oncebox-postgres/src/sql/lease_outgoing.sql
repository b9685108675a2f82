-- lease_outgoing.sql: locks the free relay rows of one sink that have something due, skips locked ones
-- Rows of this token are prolonged when two seconds of the lease are used up, or a fifteenth if that is less: to write all
-- of them for each lot would cost more than to read the lot.
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
held as materialized (
    select r.lane
    from {schema}.relay r cross join clock
    where r.sink = $2 and r.token = $3 and r.leased_until > clock.now + $4 - least(2000000, $4 / 15)
),
free as materialized (
    select r.lane
    from {schema}.relay r cross join clock
    where r.sink = $2
      and (r.token is null or r.leased_until <= clock.now or r.token = $3)
      and not exists (select 1 from held where held.lane = r.lane)
      and (r.token = $3 or (
        select o.seq from {schema}.outbox o
        where o.sink = $2 and o.lane = r.lane and not o.dead and o.due_at <= clock.now
        order by o.seq limit 1
      ) is not null)
    order by r.lane
    for update of r skip locked
),
taken as (
    update {schema}.relay r
    set token = $3, leased_until = clock.now + $4
    from free cross join clock
    where r.sink = $2 and r.lane = free.lane
    returning r.lane
)
select lane from held union all select lane from taken
