-- insert_log.sql: locks only the rows it inserts
insert into {schema}.log
    (lane, seq, received_at, not_before, identity, scope, id, kind, `key`, headers, payload)
values {rows}
