-- purge_attempt.sql: locks the attempt rows it removes, by id
delete a from json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.attempt a force index (primary) on a.id = g.id
