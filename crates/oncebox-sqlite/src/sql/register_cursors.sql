-- register_cursors.sql: adds a handler's cursors, one per lane, at the head or at the start
with recursive lanes (lane) as (select 0 union all select lane + 1 from lanes where lane + 1 < ?2)
insert into {prefix}cursor (handler, lane, position)
select ?1, lane, case when ?3 then 0 else (select seq from {prefix}head) end from lanes where true
on conflict (handler, lane) do nothing
