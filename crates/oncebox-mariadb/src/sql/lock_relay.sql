-- lock_relay.sql: locks the relay rows named that are free or ours, skips locked ones
select r.lane
from {schema}.relay r force index (primary)
where r.sink = ? and r.lane in (select g.lane from json_table(?, '$[*]' columns (lane smallint path '$')) g)
  and (r.token is null or r.leased_until <= {now} or r.token = ?)
order by r.lane
for update skip locked
