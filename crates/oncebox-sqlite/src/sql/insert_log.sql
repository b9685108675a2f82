-- insert_log.sql: appends messages
-- A scope, kind or headers of null stand for the one given before the rows: a null is bound in no time, and of a group
-- most have the same.
insert into {prefix}log (place, identity, scope, id, kind, key, headers, payload, not_before, received_at)
select v.column1, v.column2, ifnull(v.column3, ?), v.column4, ifnull(v.column5, ?), v.column6, ifnull(v.column7, ?),
    v.column8, v.column9, ?
from (values {rows}) as v
