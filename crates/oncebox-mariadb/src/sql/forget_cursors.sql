-- forget_cursors.sql: locks the cursor rows of one handler
delete from {schema}.cursor where handler = ?
