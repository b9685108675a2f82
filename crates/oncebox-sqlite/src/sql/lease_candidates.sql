-- lease_candidates.sql: the due deliveries of one handler; the write lock keeps them
select id, token is not null
from {prefix}delivery as due
where handler = ?2 and state in (0, 2) and due_at <= {now}
  and exists (select 1 from {prefix}handler where name = ?2 and paused = 0)
  and not (?4 and state = 2 and key is not null and exists (
      select 1 from {prefix}delivery as earlier
      where earlier.handler = ?2 and earlier.key = due.key and earlier.state <= 2 and earlier.state in (0, 1)
        and earlier.id < due.id
  ))
order by due_at, id
limit ?3 + 0
