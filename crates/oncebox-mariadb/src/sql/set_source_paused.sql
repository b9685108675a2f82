-- set_source_paused.sql: locks one source row
insert into {schema}.source (name, paused, changed_at)
values (?, ?, {now})
on duplicate key update paused = values(paused), changed_at = values(changed_at)
