-- claim_response.sql: inserts one response row, or takes over one that is free
insert into {prefix}response (identity, fingerprint, token, leased_until, created_at, expires_at)
values (?2, ?3, ?4, {now} + ?5, {now}, {now} + ?6)
on conflict (identity) do update
set fingerprint = excluded.fingerprint, token = excluded.token, leased_until = excluded.leased_until,
    created_at = excluded.created_at, expires_at = excluded.expires_at, status = null, headers = null, body = null
where leased_until <= {now} and (expires_at <= {now} or (status is null and fingerprint = excluded.fingerprint))
returning 1
