-- registered.sql: whether a handler is known, locks nothing
select 1 from {prefix}handler where name = ?1
