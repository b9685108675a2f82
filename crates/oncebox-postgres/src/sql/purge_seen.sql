-- purge_seen.sql: locks the seen rows it removes; reads the pages from $3 up to, not including, $4
-- Rows of seen are never updated, so a ctid read by this statement still means the same row when it deletes it.
with clock as materialized (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 as now),
floor as materialized (
    select c.lane, min(c.position) as position from {schema}.cursor c group by c.lane
),
old as materialized (
    select s.ctid as place
    from {schema}.seen s
    where s.ctid >= format('(%s,0)', $3::bigint)::tid and s.ctid < format('(%s,0)', $4::bigint)::tid
      and s.seen_at < (select now from clock) - $2
      and (s.seq is null or s.seq <= (select f.position from floor f where f.lane = s.lane))
      and not exists (
        select 1 from {schema}.delivery d where d.identity = s.identity
      )
    order by s.ctid
    limit $5
),
gone as (
    delete from {schema}.seen s where s.ctid = any(array(select old.place from old)) returning 1
)
select (select count(*) from gone) as removed, (select max((old.place::text::point)[0]::bigint) from old) as last_page
