-- release_response.sql: removes one claim, waiting for its transaction
delete from {schema}.response where identity = $1 and token = $2 and status is null
