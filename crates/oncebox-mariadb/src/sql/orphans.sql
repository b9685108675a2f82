-- orphans.sql: locks nothing; keys of one handler with held rows and nothing active before them
-- Walks from key to key along the index instead of reading every held row.
with recursive held (name) as (
    select min(d.`key`) from {schema}.delivery d where d.handler = ?
    union all
    select (select min(d.`key`) from {schema}.delivery d where d.handler = ? and d.`key` > held.name)
    from held where held.name is not null
)
select held.name
from held
where held.name is not null
  and not exists (select 1 from {schema}.handler h where h.name = ? and h.paused)
  and exists (select 1 from {schema}.delivery w where w.handler = ? and w.`key` = held.name and w.state = 1)
  and not exists (select 1 from {schema}.delivery a where a.handler = ? and a.`key` = held.name and a.state = 0)
