-- conflict.sql: locks only the rows it inserts
insert into {schema}.conflict
    (identity, fingerprint, scope, message_id, kind, key, headers, payload, not_before, received_at)
select a.identity, a.fingerprint, a.scope, a.id, a.kind, a.key, a.headers, a.payload, a.not_before, (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1
from unnest(
    $2::uuid[], $3::uuid[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bytea[]
) as a (identity, fingerprint, not_before, scope, id, kind, key, headers, payload)
order by a.identity, a.fingerprint
on conflict (identity, fingerprint) do nothing
