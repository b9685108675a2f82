-- migration_table.sql: locks nothing that exists
create table if not exists {schema}.migration (
    version integer primary key,
    name text not null,
    checksum text not null,
    applied_at bigint not null
)
