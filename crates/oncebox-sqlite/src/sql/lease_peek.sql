-- lease_peek.sql: what a handler could lease, locks nothing
select
    exists (select 1 from {prefix}handler where name = ?2 and paused = 1),
    (select min(due_at) from {prefix}delivery where handler = ?2 and state in (0, 2)) <= {now},
    (select min(due_at) from {prefix}delivery where handler = ?2 and state in (0, 2) and due_at > {now}) - {now},
    exists (select 1 from {prefix}delivery where handler = ?2 and state = 1)
