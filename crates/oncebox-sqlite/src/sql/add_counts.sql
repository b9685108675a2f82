-- add_counts.sql: adds [handler, name, value] to the running totals and to this minute
insert into {prefix}counter (handler, name, minute, value)
select count.value ->> 0, count.value ->> 1, bucket.minute, count.value ->> 2
from json_each(?2) as count
cross join (select 0 as minute union all select {now} / 60000000) as bucket
where true
on conflict (handler, name, minute) do update set value = value + excluded.value
