-- rename_attempt.sql: gives the rows of one handler a new name
update {prefix}attempt set handler = ?2 where handler = ?1
