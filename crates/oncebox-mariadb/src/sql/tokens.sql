-- tokens.sql: locks nothing
select name, hash, role, created_at, expires_at from {schema}.token order by name
