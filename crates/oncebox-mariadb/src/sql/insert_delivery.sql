-- insert_delivery.sql: locks only the rows it inserts
insert into {schema}.delivery (
    handler, identity, scope, message_id, kind, `key`, headers, payload, not_before, received_at,
    state, attempts, due_at, token, last_error
)
values {rows}
returning id
