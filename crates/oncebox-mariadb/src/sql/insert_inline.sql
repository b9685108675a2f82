-- insert_inline.sql: inserts into seen by identity, waiting for rivals that have not committed; locks what it meets
-- As insert_seen.sql, for messages without a number in the log; also tells the time and the session.
insert into {schema}.seen (identity, fingerprint, seen_at, seq)
values {rows}
on duplicate key update seq = {schema}.seen.seq
returning identity, fingerprint, seq, {now}, connection_id()
