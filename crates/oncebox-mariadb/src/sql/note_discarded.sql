-- note_discarded.sql: locks only the row it inserts
insert into {schema}.attempt (identity, handler, attempt, at, error)
select d.identity, d.handler, d.attempts, {now}, ? from {schema}.delivery d where d.id = ? and d.state = 3
