-- release_relay.sql: locks the relay rows of this token
update {schema}.relay set token = null, leased_until = 0 where sink = ? and token = ?
