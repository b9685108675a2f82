-- known.sql: locks nothing
select s.identity, s.fingerprint, s.seen_at
from json_table(?, '$[*]' columns (identity char(32) path '$')) g
straight_join {schema}.seen s on s.identity = unhex(g.identity)
