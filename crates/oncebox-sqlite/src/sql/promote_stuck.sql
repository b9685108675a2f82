-- promote_stuck.sql: makes held deliveries ready that nothing holds any more, among the first 1000
update {prefix}delivery
set state = 0, due_at = {now}, token = null
where id in (
    select held.id
    from (select id, key from {prefix}delivery where handler = ?2 and state = 1 order by id limit 1000) as held
    where held.key is null
       or (not exists (
            select 1 from {prefix}delivery as active
            where active.handler = ?2 and active.key = held.key and active.state <= 2 and active.state = 0
        ) and not exists (
            select 1 from {prefix}delivery as earlier
            where earlier.handler = ?2 and earlier.key = held.key and earlier.state <= 2 and earlier.state = 1
              and earlier.id < held.id
        ))
)
returning id
