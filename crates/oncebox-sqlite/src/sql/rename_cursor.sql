-- rename_cursor.sql: gives the rows of one handler a new name
update {prefix}cursor set handler = ?2 where handler = ?1
