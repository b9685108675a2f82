-- counts.sql: locks nothing; includes what the function `receive` has counted since the last purge
select c.handler, c.name, cast(sum(c.value) as signed)
from (
    select handler, name, value from {schema}.counter where minute = 0
    union all
    select '', name, count(*) from {schema}.tally group by name
) as c
group by c.handler, c.name
order by c.handler, c.name
