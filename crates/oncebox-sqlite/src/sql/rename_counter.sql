-- rename_counter.sql: gives the counters of one handler a new name
update or replace {prefix}counter set handler = ?2 where handler = ?1
