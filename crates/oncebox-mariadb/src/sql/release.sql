-- release.sql: locks the cursor rows marked with this token
update {schema}.cursor set token = null where handler = ? and token = ?
