-- forget_handler.sql: locks one handler row
delete from {schema}.handler where name = ?
