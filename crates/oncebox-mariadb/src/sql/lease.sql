-- lease.sql: leases delivery rows this transaction has locked and counts the attempt
-- MariaDB sets one column after the other, so the old token is asked for before it is replaced.
update json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.delivery d force index (primary) on d.id = g.id
set d.last_error = case when d.token is null then d.last_error else ? end,
    d.state = 0, d.token = ?, d.attempts = d.attempts + 1, d.due_at = {now} + ?
