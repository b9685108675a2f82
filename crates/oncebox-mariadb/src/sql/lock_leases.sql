-- lock_leases.sql: locks the leased delivery rows that are still ours, skips locked ones
select d.id, connection_id()
from json_table(?, '$[*]' columns (id bigint path '$[0]', token bigint path '$[1]', attempt int path '$[2]')) g
straight_join {schema}.delivery d force index (primary)
    on d.id = g.id and d.token = g.token and d.attempts = g.attempt
where d.handler = ? and d.state = 0
for update skip locked
