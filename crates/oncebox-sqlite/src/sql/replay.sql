-- replay.sql: makes dead letters (a list of ids) wait again: ready, or held where their key must stay in order
update {prefix}delivery
set attempts = 0, token = null, due_at = {now}, last_error = null,
    state = case
        when key is null or not exists (
            select 1 from {prefix}handler where name = {prefix}delivery.handler and ordered = 1
        ) then 0
        else 1
    end
where id in (select value from json_each(?2)) and state = 3
returning handler, key, state
