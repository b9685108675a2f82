-- conflicts_of.sql: one id with other bytes, oldest first, at most 100 and no more after 8 MiB, locks nothing
with matching as (
    select received_at, fingerprint, length(payload) as bytes
    from {prefix}conflict
    where identity = ?1
    order by received_at, fingerprint
    limit 100
), page as (
    select fingerprint,
        sum(bytes) over (order by received_at, fingerprint rows unbounded preceding) - bytes as before
    from matching
)
select received_at, scope, message_id, kind, key, headers, payload, not_before
from page
cross join {prefix}conflict as conflict
    on conflict.identity = ?1 and conflict.fingerprint = page.fingerprint
where page.before < 8388608
order by received_at, conflict.fingerprint
