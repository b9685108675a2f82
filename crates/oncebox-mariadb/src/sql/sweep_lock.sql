-- sweep_lock.sql: locks the sweep row, skips it when another purge has it
select position, identity from {schema}.sweep where name = ? for update skip locked
