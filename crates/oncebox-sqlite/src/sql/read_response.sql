-- read_response.sql: locks nothing; also says whether a request with this content may take the row over
select fingerprint, status, headers, body,
    leased_until <= {now} and (expires_at <= {now} or (status is null and fingerprint = ?3))
from {prefix}response
where identity = ?2
