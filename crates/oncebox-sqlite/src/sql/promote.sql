-- promote.sql: makes the first held delivery of each key ready, where none is active, if the handler is ordered
update {prefix}delivery
set state = 0, due_at = {now}, token = null
where exists (select 1 from {prefix}handler where name = ?2 and ordered = 1)
  and id in (
    select (
        select held.id from {prefix}delivery as held
        where held.handler = ?2 and held.key = keys.value and held.state <= 2 and held.state = 1
        order by held.id limit 1
    )
    from json_each(?3) as keys
    where not exists (
        select 1 from {prefix}delivery as active
        where active.handler = ?2 and active.key = keys.value and active.state <= 2 and active.state = 0
    )
)
