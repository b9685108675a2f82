-- rename_attempt.sql: locks the attempt rows of one handler
update {schema}.attempt set handler = ? where handler = ?
