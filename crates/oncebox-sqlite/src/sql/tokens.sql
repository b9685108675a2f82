-- tokens.sql: all tokens, locks nothing
select name, hash, role, created_at, expires_at from {prefix}token order by name
