-- claim.sql: locks up to $4 free cursor rows of one handler, skips locked ones
-- The mark must outlive this process, not a crash of the database, so its commit does not wait for the disk.
with clock as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now, set_config('synchronous_commit', 'off', true) as relaxed
),
free as materialized (
    select c.lane, c.token, c.started_at, c.suspects
    from {schema}.cursor c cross join clock
    where c.handler = $2
      and (c.token is null or c.started_at <= clock.now - $6)
      and clock.relaxed = 'off'
      and exists (select 1 from {schema}.handler h where h.name = $2 and not h.paused)
      and (select l.seq from {schema}.log l where l.lane = c.lane and l.seq > c.position order by l.seq limit 1) is not null
    order by c.started_at, c.lane
    limit $4
    for update of c skip locked
),
marked as (
    update {schema}.cursor c
    set token = $3, started_at = clock.now, suspects = $5
    from free cross join clock
    where c.handler = $2 and c.lane = free.lane
    returning c.lane
)
select free.lane, case when free.token is not null then free.suspects end as suspects
from free join marked on marked.lane = free.lane
order by free.started_at, free.lane
