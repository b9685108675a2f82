-- insert_outbox.sql: adds outgoing messages
insert into {prefix}outbox (sink, lane, scope, id, kind, key, headers, payload, not_before, due_at, created_at)
values {rows}
