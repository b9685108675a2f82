-- still_ours.sql: locks the leased delivery rows that are still ours, by id
select d.id, d.identity, d.`key`, d.token, d.attempts
from json_table(?, '$[*]' columns (id bigint path '$[0]', token bigint path '$[1]', attempt int path '$[2]')) g
straight_join {schema}.delivery d force index (primary)
    on d.id = g.id and d.token = g.token and d.attempts = g.attempt
where d.handler = ? and d.state = 0
for update
