-- discard.sql: gives dead letters (a list of ids) up
update {prefix}delivery set state = 4, due_at = {now}
where id in (select value from json_each(?2)) and state = 3
