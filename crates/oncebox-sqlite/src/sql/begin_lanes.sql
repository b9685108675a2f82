-- begin_lanes.sql: where those of these lanes stand that carry the token's mark; the write lock keeps them
-- In one row, as an object. Beside them the last number of the head, and whether the log still has the message ?5 of the
-- time ?6 at the place ?4, where this process appended last.
select json_group_object(lane, position), (select seq from {prefix}head),
    exists (select 1 from {prefix}log where place = ?4 and identity = ?5 and received_at = ?6)
from {prefix}cursor
where handler = ?1 and token = ?2 and lane in (select value ->> 0 from json_each(?3))
