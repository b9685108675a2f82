-- expired_responses.sql: locks response rows whose time is over, skips locked ones
select lower(hex(identity)) from {schema}.response
where expires_at <= {now} and leased_until <= {now}
order by expires_at
limit ?
for update skip locked
