-- outbox_status.sql: locks nothing; counts within bounds what waits for one sink
select
    (select count(*) from (
        select 1 from {schema}.outbox force index (outbox_state) where sink = ? and state = 0 limit ?) n),
    (select count(*) from (
        select 1 from {schema}.outbox force index (outbox_state) where sink = ? and state = 1 limit ?) n),
    (select count(*) from (
        select 1 from {schema}.outbox force index (outbox_state) where sink = ? and state = 2 limit ?) n),
    {now} - (
        select min(first.created_at) from (
            (select created_at from {schema}.outbox force index (outbox_state)
                where sink = ? and state = 0 order by seq limit 1)
            union all
            (select created_at from {schema}.outbox force index (outbox_state)
                where sink = ? and state = 1 order by seq limit 1)
        ) first
    )
