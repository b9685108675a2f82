-- insert_conflict.sql: inserts into conflict by identity and fingerprint; a known one stays as it is, locked
insert into {schema}.conflict
    (identity, fingerprint, scope, message_id, kind, `key`, headers, payload, not_before, received_at)
values {rows}
on duplicate key update received_at = {schema}.conflict.received_at
