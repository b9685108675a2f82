-- forget_counter.sql: locks the counter rows of one handler
delete from {schema}.counter where handler = ?
