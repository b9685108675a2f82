-- timeouts.sql: locks nothing
select cast(@@session.wait_timeout as signed)
