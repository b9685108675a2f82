-- known.sql: locks nothing
select identity, fingerprint from {schema}.seen where identity = any($1::uuid[])
