-- promote.sql: locks the first held row of each (handler, key) that has nothing active
update (
    select min(d.id) as id
    from json_table(?, '$[*]' columns (handler varchar(200) path '$[0]', name varchar(1024) path '$[1]')) g
    straight_join {schema}.handler h on h.name = unhex(g.handler) and h.ordered
    straight_join {schema}.delivery d force index (delivery_key)
        on d.handler = h.name and d.`key` = unhex(g.name) and d.state = 1
    where not exists (
        select 1 from {schema}.delivery a
        where a.handler = h.name and a.`key` = unhex(g.name) and a.state = 0
    )
    group by d.handler, d.`key`
) first
straight_join {schema}.delivery p force index (primary) on p.id = first.id
set p.state = 0, p.due_at = {now}, p.token = null
where p.state = 1
