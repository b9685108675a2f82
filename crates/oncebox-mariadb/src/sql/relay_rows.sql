-- relay_rows.sql: locks the relay rows of one sink, of which it inserts those that are missing
insert into {schema}.relay (sink, lane)
select ?, g.lane from json_table(?, '$[*]' columns (lane smallint path '$')) g
on duplicate key update leased_until = {schema}.relay.leased_until
