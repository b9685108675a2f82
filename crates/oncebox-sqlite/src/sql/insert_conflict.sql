-- insert_conflict.sql: keeps a message whose id was known with other bytes
insert into {prefix}conflict (identity, fingerprint, scope, message_id, kind, key, headers, payload, not_before,
    received_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
on conflict (identity, fingerprint) do nothing
