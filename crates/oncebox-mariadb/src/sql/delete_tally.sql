-- delete_tally.sql: locks the tally rows named, by id
delete t from json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.tally t on t.id = g.id
