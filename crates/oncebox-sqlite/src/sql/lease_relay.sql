-- lease_relay.sql: leases lanes of one sink to a token, and prolongs those it has
insert into {prefix}relay (sink, lane, token, leased_until)
select ?2, lane, ?3, {now} + ?5
from (
    select value as lane from json_each(?4)
    union
    select lane from {prefix}relay where sink = ?2 and token = ?3
)
where true
on conflict (sink, lane) do update set token = excluded.token, leased_until = excluded.leased_until
