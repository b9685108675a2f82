-- claim.sql: marks up to ?4 lanes of one handler that have messages and no fresh mark
update {prefix}cursor
set token = ?3, started_at = {now}, suspects = ?5, inherited = case when token is null then null else suspects end
where handler = ?2 and lane in (
    select candidate.lane
    from {prefix}cursor as candidate
    where candidate.handler = ?2
      and (candidate.token is null or candidate.started_at <= {now} - ?6)
      and (select paused from {prefix}handler where name = ?2) = 0
      -- Not `exists`, which SQLite may turn into a join.
      and (
          select place from {prefix}log
          where place > (candidate.lane << 48) + candidate.position and place < (candidate.lane + 1) << 48
          order by place limit 1
      ) is not null
    order by candidate.started_at, candidate.lane
    limit ?4 + 0
)
returning lane, inherited
