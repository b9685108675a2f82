-- insert_log.sql: appends messages
insert into {prefix}log (place, identity, scope, id, kind, key, headers, payload, not_before, received_at)
values {rows}
