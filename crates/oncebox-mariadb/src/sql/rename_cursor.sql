-- rename_cursor.sql: locks the cursor rows of one handler
update {schema}.cursor set handler = ? where handler = ?
