-- migration_table.sql: locks nothing that exists
create table if not exists {schema}.migration (
    version integer not null primary key,
    name varbinary(100) not null,
    checksum varbinary(64) not null,
    applied_at bigint not null
) engine = innodb
