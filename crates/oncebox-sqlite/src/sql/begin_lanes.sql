-- begin_lanes.sql: how many of these lanes carry the token's mark; the write lock keeps them
select count(*) from {prefix}cursor
where handler = ?1 and token = ?2 and lane in (select value ->> 0 from json_each(?3))
