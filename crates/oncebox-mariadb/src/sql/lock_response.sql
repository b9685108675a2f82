-- lock_response.sql: locks one response row that may be taken over, skips it when it is locked
select 1 from {schema}.response
where identity = ? and leased_until <= {now} and (expires_at <= {now} or (status is null and fingerprint = ?))
for update skip locked
