-- purge_responses.sql: removes response rows this transaction has locked
delete r from json_table(?, '$[*]' columns (identity char(32) path '$')) g
straight_join {schema}.response r on r.identity = unhex(g.identity)
