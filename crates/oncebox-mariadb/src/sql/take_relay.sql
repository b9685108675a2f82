-- take_relay.sql: leases relay rows this transaction has locked
update {schema}.relay set token = ?, leased_until = {now} + ?
where sink = ? and lane in (select g.lane from json_table(?, '$[*]' columns (lane smallint path '$')) g)
