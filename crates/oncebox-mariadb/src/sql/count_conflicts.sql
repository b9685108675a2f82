-- count_conflicts.sql: up to so many of them, locks nothing
select count(*) from (select 1 from {schema}.conflict limit ?) n
