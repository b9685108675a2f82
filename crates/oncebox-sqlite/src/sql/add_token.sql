-- add_token.sql: adds a token unless there is one of that name
insert into {prefix}token (name, hash, role, created_at, expires_at) values (?2, ?3, ?4, {now}, ?5)
on conflict (name) do nothing
returning 1
