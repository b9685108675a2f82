-- verify_leases.sql: how many of these leases [id, token, attempt] are still held; the write lock keeps them
select count(*) from json_each(?2) as lease
cross join {prefix}delivery as delivery on delivery.id = lease.value ->> 0
where delivery.handler = ?1 and delivery.state = 0
  and delivery.token = lease.value ->> 1 and delivery.attempts = lease.value ->> 2
