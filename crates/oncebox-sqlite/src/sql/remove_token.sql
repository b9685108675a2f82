-- remove_token.sql: removes one token
delete from {prefix}token where name = ?1 returning 1
