-- clock.sql: locks nothing
select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1
