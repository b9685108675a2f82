-- held_keys.sql: locks nothing; (handler, key) pairs with a delivery that is ready or held
select distinct d.handler, d.`key`
from json_table(?, '$[*]' columns (handler varchar(200) path '$')) h
straight_join json_table(?, '$[*]' columns (name varchar(1024) path '$')) k
straight_join {schema}.delivery d force index (delivery_key)
    on d.handler = unhex(h.handler) and d.`key` = unhex(k.name) and d.state in (0, 1)
