-- settle_response.sql: locks one claim; with a marker only in the transaction that carries it
update {schema}.response
set status = $3, headers = $4, body = $5, leased_until = 0
where identity = $1 and token = $2 and status is null
  and ($6::text is null or current_setting('oncebox.tx', true) = $6)
