-- relay_rows.sql: locks only the rows it inserts
insert into {schema}.relay (sink, lane)
select $1, lane from generate_series(0, $2::integer - 1) as lane
order by lane
on conflict (sink, lane) do nothing
