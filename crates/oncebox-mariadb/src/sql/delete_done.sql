-- delete_done.sql: removes delivery rows this transaction has locked
delete d from json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.delivery d force index (primary) on d.id = g.id
