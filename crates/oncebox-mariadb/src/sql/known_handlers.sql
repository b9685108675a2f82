-- known_handlers.sql: locks the handler rows named, by name
select name from {schema}.handler
where name in (select unhex(g.name) from json_table(?, '$[*]' columns (name varchar(200) path '$')) g)
order by name
for update
