-- known.sql: what is remembered of identities (a list in hex), locks nothing
select identity, fingerprint, seq, seen_at from {prefix}seen
where identity in (select unhex(value) from json_each(?1))
