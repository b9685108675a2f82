-- attempts_of.sql: the failed attempts at one message, oldest first, locks nothing
select handler, attempt, at, error from {prefix}attempt where identity = ?1 order by id
