-- known_handlers.sql: locks the handler rows named, by name
select name from {schema}.handler where name = any($1::text[]) order by name for update
