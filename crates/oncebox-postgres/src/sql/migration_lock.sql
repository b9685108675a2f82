-- migration_lock.sql: locks the migration table against other migrators until the commit
lock table {schema}.migration in exclusive mode
