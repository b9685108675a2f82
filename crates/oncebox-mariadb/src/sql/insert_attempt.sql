-- insert_attempt.sql: locks only the rows it inserts
insert into {schema}.attempt (identity, handler, attempt, at, error)
values {rows}
