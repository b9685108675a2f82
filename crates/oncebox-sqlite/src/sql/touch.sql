-- touch.sql: changes nothing, but fails where writing is not allowed
update {prefix}head set seq = seq
