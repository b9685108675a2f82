-- add_counts.sql: locks the counter rows named, by handler, name and minute
insert into {schema}.counter as c (handler, name, minute, value)
select g.handler, g.name, m.minute, sum(g.value)::bigint
from unnest($2::text[], $3::text[], $4::bigint[]) as g (handler, name, value)
cross join (select 0::bigint as minute union all select ((extract(epoch from clock_timestamp()) * 1000000)::bigint + $1) / 60000000) as m
group by g.handler, g.name, m.minute
order by g.handler, g.name, m.minute
on conflict (handler, name, minute) do update set value = c.value + excluded.value
