-- register.sql: locks one handler row
insert into {schema}.handler (name, kinds, ordered, registered_at)
values (?, ?, ?, {now})
on duplicate key update kinds = values(kinds), ordered = values(ordered)
