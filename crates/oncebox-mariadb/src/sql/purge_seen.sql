-- purge_seen.sql: locks the seen rows named, by identity, and removes those that are still old
delete s from json_table(?, '$[*]' columns (identity char(32) path '$')) g
straight_join {schema}.seen s force index (primary) on s.identity = unhex(g.identity)
where s.seen_at < {now} - ?
