-- fold_tally.sql: locks the counter rows that the tally rows named are added to, by name and minute
insert into {schema}.counter (handler, name, minute, value)
select '', t.name, if(w.total, 0, t.counted_at div 60000000) as minute, count(*)
from json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.tally t on t.id = g.id
cross join (select true as total union all select false) w
group by t.name, minute
order by t.name, minute
on duplicate key update value = {schema}.counter.value + values(value)
