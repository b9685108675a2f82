-- handlers.sql: one row per handler and lane with bounded counts, locks nothing
select handler.name, handler.kinds, handler.paused,
    (select count(*) from (
        select 1 from {prefix}log
        where place > (cursor.lane << 48) + cursor.position and place < (cursor.lane + 1) << 48
        limit 1001
    )),
    max((select seq from {prefix}head) - cursor.position, 0),
    {now} - (
        select received_at from {prefix}log
        where place > (cursor.lane << 48) + cursor.position and place < (cursor.lane + 1) << 48
        order by place limit 1
    ),
    case when cursor.lane = 0 then json_array(
        (select count(*) from (
            select 1 from {prefix}delivery where handler = handler_name and state = 0 and last_error is not null
            limit 10000)),
        (select count(*) from (
            select 1 from {prefix}delivery where handler = handler_name and state = 1 limit 10000)),
        (select count(*) from (
            select 1 from {prefix}delivery where handler = handler_name and state = 2 limit 10000)),
        (select count(*) from (
            select 1 from {prefix}delivery where handler = handler_name and state = 3 limit 10000))
    ) end
from (select name, name as handler_name, kinds, paused from {prefix}handler) as handler
cross join {prefix}cursor as cursor on cursor.handler = handler.name
order by handler.name, cursor.lane
