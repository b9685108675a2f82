-- release_response.sql: removes one claim
delete from {prefix}response where identity = ?1 and token = ?2 and status is null
returning 1
