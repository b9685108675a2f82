-- forget.sql: locks the rows of one handler
with cursors as (delete from {schema}.cursor where handler = $1),
deliveries as (delete from {schema}.delivery where handler = $1)
delete from {schema}.handler where name = $1
