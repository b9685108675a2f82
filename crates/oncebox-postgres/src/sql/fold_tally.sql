-- fold_tally.sql: locks up to $1 tally rows, skipping locked ones, and the counter rows they are added to
with taken as (
    delete from {schema}.tally t
    where t.ctid = any(array(select o.ctid from {schema}.tally o limit $1 for update skip locked))
    returning t.name, t.counted_at
),
added as (
    insert into {schema}.counter as c (handler, name, minute, value)
    select '', t.name, m.minute, count(*)
    from taken t cross join lateral (values (0::bigint), (t.counted_at / 60000000)) as m (minute)
    group by t.name, m.minute
    order by t.name, m.minute
    on conflict (handler, name, minute) do update set value = c.value + excluded.value
)
select count(*) from taken
