-- insert_outbox.sql: locks only the rows it inserts
insert into {schema}.outbox
    (sink, lane, scope, id, kind, `key`, headers, payload, not_before, due_at, created_at)
values {rows}
