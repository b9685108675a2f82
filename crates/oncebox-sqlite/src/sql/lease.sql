-- lease.sql: leases deliveries and counts the attempt
update {prefix}delivery
set state = 0, token = ?3, attempts = attempts + 1, due_at = {now} + ?4,
    last_error = case when token is null then last_error else ?5 end
where id in (select value from json_each(?2))
returning id, attempts, scope, message_id, kind, key, headers, payload, not_before, last_error
