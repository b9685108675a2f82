-- add_token.sql: locks only the row it inserts
insert into {schema}.token (name, hash, role, created_at, expires_at)
values ($2, $3, $4, (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1, $5)
on conflict (name) do nothing
