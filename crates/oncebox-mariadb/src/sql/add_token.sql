-- add_token.sql: locks only the row it inserts; a name that is there is an error
insert into {schema}.token (name, hash, role, created_at, expires_at)
values (?, ?, ?, {now}, ?)
