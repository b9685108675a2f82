-- remove_token.sql: locks the token row it removes
delete from {schema}.token where name = $1
