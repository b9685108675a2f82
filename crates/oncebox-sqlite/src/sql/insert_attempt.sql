-- insert_attempt.sql: notes failed attempts; ?2 is a list of [identity in hex, handler, attempt, error]
insert into {prefix}attempt (identity, handler, attempt, at, error)
select unhex(value ->> 0), value ->> 1, value ->> 2, {now}, value ->> 3 from json_each(?2)
