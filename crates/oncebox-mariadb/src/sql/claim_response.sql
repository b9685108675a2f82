-- claim_response.sql: takes over a response row that this transaction has locked
update {schema}.response
set fingerprint = ?, token = ?, leased_until = {now} + ?, created_at = {now}, expires_at = {now} + ?,
    status = null, headers = null, body = null
where identity = ?
