-- begin_response.sql: reads one claim; the write lock of the transaction protects it
select 1 from {prefix}response where identity = ?1 and token = ?2 and status is null
