-- migrations.sql: locks nothing
select version, name, checksum, applied_at from {schema}.migration order by version
