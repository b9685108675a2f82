-- outgoing.sql: locks nothing; of sink $1, dead or not ($2), tried or not ($3), after $4, at most $5. The dead ones
-- apart, because they have an index of their own.
select * from (
    select o.seq, o.sink, o.attempts, o.dead, o.due_at, o.created_at, o.last_error, o.scope, o.id, o.kind, o.key
    from {schema}.outbox o
    where o.dead and ($2::boolean is null or $2) and ($1::text is null or o.sink = $1)
      and ($3::boolean is null or (o.attempts > 0) = $3) and ($4::bigint is null or o.seq > $4)
    order by o.seq
    limit $5
) as dead
union all
select * from (
    select o.seq, o.sink, o.attempts, o.dead, o.due_at, o.created_at, o.last_error, o.scope, o.id, o.kind, o.key
    from {schema}.outbox o
    where not o.dead and ($2::boolean is null or not $2) and ($1::text is null or o.sink = $1)
      and ($3::boolean is null or (o.attempts > 0) = $3) and ($4::bigint is null or o.seq > $4)
    order by o.seq
    limit $5
) as waiting
order by seq
limit $5
