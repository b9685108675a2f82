-- purge_delivery.sql: locks the discarded delivery rows it removes, by id
delete d from json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.delivery d force index (primary) on d.id = g.id
where d.state = 4
