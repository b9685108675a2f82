-- insert_delivery.sql: gives deliveries a row of their own, dated by when their messages were seen
insert into {prefix}delivery (handler, identity, scope, message_id, kind, key, headers, payload, not_before,
    received_at, state, attempts, due_at, token, last_error)
select parked.column1, parked.column2, parked.column3, parked.column4, parked.column5, parked.column6,
    parked.column7, parked.column8, parked.column9, coalesce(seen.seen_at, parked.column10), parked.column11,
    parked.column12, parked.column13, parked.column14, parked.column15
from (values {rows}) as parked
left join {prefix}seen as seen on seen.identity = parked.column2
returning id
