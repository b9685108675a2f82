-- take_tally.sql: locks up to ? tally rows, skips locked ones
select id from {schema}.tally order by id limit ? for update skip locked
