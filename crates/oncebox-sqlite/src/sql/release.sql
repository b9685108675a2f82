-- release.sql: takes the marks of one token off
update {prefix}cursor set token = null where handler = ?1 and token = ?2
