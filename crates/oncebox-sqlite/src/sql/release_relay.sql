-- release_relay.sql: gives the lanes of a token back
update {prefix}relay set token = null where sink = ?1 and token = ?2
