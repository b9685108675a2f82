-- renew_response.sql: locks one claim, skips it when its transaction has it
update {schema}.response r
set leased_until = (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1 + $4
from (
    select o.identity from {schema}.response o
    where o.identity = $2 and o.token = $3 and o.status is null
    for update skip locked
) as ours
where r.identity = ours.identity
