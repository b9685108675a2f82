-- sweep_attempt.sql: locks nothing; the next failed attempts, and which of them are old and have no delivery any more
select a.id,
    a.at < {now} - ? and not exists (
        select 1 from {schema}.delivery d where d.identity = a.identity and d.handler = a.handler
    )
from {schema}.attempt a force index (primary)
where a.id > ?
order by a.id
limit ?
