-- rename_handler.sql: gives a handler a new name
update {prefix}handler set name = ?2 where name = ?1
