-- set_source_paused.sql: locks one source row
insert into {schema}.source as s (name, paused, changed_at)
values ($2, $3, (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1)
on conflict (name) do update set paused = excluded.paused, changed_at = excluded.changed_at
