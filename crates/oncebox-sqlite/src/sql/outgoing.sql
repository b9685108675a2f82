-- outgoing.sql: messages of the outbox: of sink ?1, dead or not (?2), tried or not (?3), after ?4, at most ?5; locks
-- nothing. The dead ones apart, because only they have that index.
select * from (
    select seq, sink, attempts, dead, due_at, created_at, last_error, scope, id, kind, key
    from {prefix}outbox
    where dead = 1 and (?2 is null or ?2) and (?1 is null or sink = ?1) and (?3 is null or (attempts > 0) = ?3)
      and (?4 is null or seq > ?4)
    order by seq
    limit ?5 + 0
)
union all
select * from (
    select seq, sink, attempts, dead, due_at, created_at, last_error, scope, id, kind, key
    from {prefix}outbox
    where dead = 0 and (?2 is null or not ?2) and (?1 is null or sink = ?1) and (?3 is null or (attempts > 0) = ?3)
      and (?4 is null or seq > ?4)
    order by seq
    limit ?5 + 0
)
order by 1
limit ?5 + 0
