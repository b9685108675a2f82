-- once.sql: inserts one row into seen, waiting for a rival that has not committed
insert into {schema}.seen (identity, fingerprint, seen_at)
values ($2, '00000000-0000-0000-0000-000000000000', (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1)
on conflict (identity) do nothing
