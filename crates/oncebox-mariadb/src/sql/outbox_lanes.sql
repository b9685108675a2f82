-- outbox_lanes.sql: locks nothing; the lanes of the next messages one relay could send, and those it has
select distinct n.lane from (
    (
        select o.lane from {schema}.outbox o force index (outbox_state)
        where o.sink = ? and o.state = 0 and o.due_at <= {now}
          and o.lane not in (
            select r.lane from {schema}.relay r
            where r.sink = ? and r.token is not null and r.token <> ? and r.leased_until > {now}
          )
        order by o.seq limit ?
    )
    union all
    (
        select o.lane from {schema}.outbox o force index (outbox_state)
        where o.sink = ? and o.state = 1 and o.due_at <= {now}
          and o.lane not in (
            select r.lane from {schema}.relay r
            where r.sink = ? and r.token is not null and r.token <> ? and r.leased_until > {now}
          )
        order by o.seq limit ?
    )
    union all
    (select r.lane from {schema}.relay r where r.sink = ? and r.token = ?)
) n
order by n.lane
