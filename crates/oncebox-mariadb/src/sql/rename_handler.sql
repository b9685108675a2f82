-- rename_handler.sql: locks one handler row
update {schema}.handler set name = ? where name = ?
