-- conflict_page.sql: conflicts after a place in their list (?1 to ?3), at most ?4, and no more after ?5 bytes of
-- payloads; locks nothing
with matching as (
    select received_at, identity, fingerprint, length(payload) as bytes
    from {prefix}conflict
    where ?1 is null or received_at < ?1 or (received_at = ?1 and (identity, fingerprint) < (?2, ?3))
    order by received_at desc, identity desc, fingerprint desc
    limit ?4 + 0
), page as (
    select identity, fingerprint, sum(bytes) over (
        order by received_at desc, identity desc, fingerprint desc rows unbounded preceding
    ) - bytes as before
    from matching
)
select conflict.received_at, scope, message_id, kind, key, headers, payload, not_before,
    conflict.identity, conflict.fingerprint
from page
cross join {prefix}conflict as conflict
    on conflict.identity = page.identity and conflict.fingerprint = page.fingerprint
where ?5 is null or page.before < ?5
order by conflict.received_at desc, conflict.identity desc, conflict.fingerprint desc
