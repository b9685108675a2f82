-- discard.sql: locks the dead delivery rows named, by id
update json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.delivery d force index (primary) on d.id = g.id
set d.state = 4, d.due_at = {now}, d.token = null
where d.state = 3
