-- lock_claim.sql: locks one claim, skips it when its transaction has it
select 1 from {schema}.response
where identity = ? and token = ? and status is null
for update skip locked
