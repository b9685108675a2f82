-- renew_response.sql: prolongs a claim that this transaction has locked
update {schema}.response set leased_until = {now} + ? where identity = ?
