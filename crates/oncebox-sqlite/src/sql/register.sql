-- register.sql: writes one handler's row
insert into {prefix}handler (name, kinds, ordered, registered_at) values (?2, ?3, ?4, {now})
on conflict (name) do update set kinds = excluded.kinds, ordered = excluded.ordered
where kinds is not excluded.kinds or ordered is not excluded.ordered
