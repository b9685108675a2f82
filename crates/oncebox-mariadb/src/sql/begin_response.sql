-- begin_response.sql: locks one claim, for as long as the transaction lasts
select connection_id() from {schema}.response
where identity = ? and token = ? and status is null
for update
