-- listen.sql: locks nothing
select (select h.seq from {schema}.head h), (select max(o.seq) from {schema}.outbox o)
