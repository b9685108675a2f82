-- insert_response.sql: inserts one response row
insert into {schema}.response (identity, fingerprint, token, leased_until, created_at, expires_at)
values (?, ?, ?, {now} + ?, {now}, {now} + ?)
