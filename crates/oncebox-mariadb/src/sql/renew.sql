-- renew.sql: prolongs leases of delivery rows this transaction has locked
update json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.delivery d force index (primary) on d.id = g.id
set d.due_at = {now} + ?
