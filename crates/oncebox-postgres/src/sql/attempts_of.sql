-- attempts_of.sql: locks nothing
select a.handler, a.attempt, a.at, a.error from {schema}.attempt a where a.identity = $1 order by a.id
