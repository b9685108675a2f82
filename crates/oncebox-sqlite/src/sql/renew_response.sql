-- renew_response.sql: prolongs one claim
update {prefix}response set leased_until = {now} + ?4 where identity = ?2 and token = ?3 and status is null
returning 1
