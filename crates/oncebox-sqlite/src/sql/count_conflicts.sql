-- count_conflicts.sql: up to ?1 of them, locks nothing
select count(*) from (select 1 from {prefix}conflict limit ?1 + 0)
