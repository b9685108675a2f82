-- settle_response.sql: locks one claim
update {schema}.response
set status = ?, headers = ?, body = ?, leased_until = 0
where identity = ? and token = ? and status is null
