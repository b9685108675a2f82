-- renew.sql: prolongs leases [id, token, attempt] that are still held
update {prefix}delivery
set due_at = {now} + ?4
where handler = ?2 and state = 0
  and (id, token, attempts) in (select value ->> 0, value ->> 1, value ->> 2 from json_each(?3))
returning id, token, attempts
