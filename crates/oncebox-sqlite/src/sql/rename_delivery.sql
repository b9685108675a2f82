-- rename_delivery.sql: gives the rows of one handler a new name
update {prefix}delivery set handler = ?2 where handler = ?1
