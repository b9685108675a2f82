-- move_lanes.sql: moves the cursors that still carry the token's mark; ?4 is a list of [lane, position]
update {prefix}cursor
set position = moved.value ->> 1, started_at = {now}, token = case when ?5 then token end
from json_each(?4) as moved
where {prefix}cursor.handler = ?2 and {prefix}cursor.lane = moved.value ->> 0 and {prefix}cursor.token = ?3
