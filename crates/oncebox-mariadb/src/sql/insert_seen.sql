-- insert_seen.sql: inserts into seen by identity, waiting for rivals that have not committed; locks what it meets
-- Whoever meets an id keeps the row and returns its seq, by which the caller knows whether it is his own. Only this
-- one key can be met, and any other error is an error.
insert into {schema}.seen (identity, fingerprint, seen_at, seq, lane)
values {rows}
on duplicate key update seq = {schema}.seen.seq
returning identity, fingerprint, seq
