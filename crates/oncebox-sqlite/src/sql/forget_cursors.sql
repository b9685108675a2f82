-- forget_cursors.sql: removes the cursors of one handler
delete from {prefix}cursor where handler = ?1
