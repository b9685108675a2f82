-- migration_applied.sql: locks only the row it inserts
insert into {schema}.migration (version, name, checksum, applied_at)
values ($1, $2, $3, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
