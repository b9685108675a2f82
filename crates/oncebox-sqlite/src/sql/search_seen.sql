-- search_seen.sql: where the message of an identity is, locks nothing
select (lane << 48) + seq from {prefix}seen where identity = ?1 and seq is not null
