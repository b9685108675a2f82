-- verify_leases.sql: which of these leases [id, token, attempt] are still held, by place; the write lock keeps them
select lease.key from json_each(?2) as lease
cross join {prefix}delivery as delivery on delivery.id = lease.value ->> 0
where delivery.handler = ?1 and delivery.state = 0
  and delivery.token = lease.value ->> 1 and delivery.attempts = lease.value ->> 2
