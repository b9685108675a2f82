-- settle_response.sql: answers one claim
update {prefix}response set status = ?3, headers = ?4, body = ?5, leased_until = 0
where identity = ?1 and token = ?2 and status is null
returning 1
