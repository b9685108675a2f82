-- migration_applied.sql: locks only the row it inserts
insert into {schema}.migration (version, name, checksum, applied_at) values (?, ?, ?, {now})
