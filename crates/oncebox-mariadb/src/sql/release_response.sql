-- release_response.sql: removes one claim, waiting for its transaction
delete from {schema}.response where identity = ? and token = ? and status is null
