-- register.sql: locks one handler row
insert into {schema}.handler as h (name, kinds, ordered, registered_at)
values ($2, $3, $4, (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1)
on conflict (name) do update set kinds = excluded.kinds, ordered = excluded.ordered
