-- clock.sql: reads the database's clock, locks nothing
select {now}
