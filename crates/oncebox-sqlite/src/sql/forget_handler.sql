-- forget_handler.sql: removes one handler
delete from {prefix}handler where name = ?1
