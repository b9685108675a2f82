-- replay.sql: locks the dead delivery rows named, by id
update json_table(?, '$[*]' columns (id bigint path '$')) g
straight_join {schema}.delivery d force index (primary) on d.id = g.id and d.state = 3
left join {schema}.handler h on h.name = d.handler
set d.state = case when d.`key` is not null and coalesce(h.ordered, false) then 1 else 0 end,
    d.attempts = 0, d.token = null, d.due_at = {now}, d.last_error = null
