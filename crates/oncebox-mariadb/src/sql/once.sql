-- once.sql: inserts one row into seen, waiting for a rival that has not committed; writes nothing outside a transaction
insert into {schema}.seen (identity, fingerprint, seen_at, seq)
select ?, x'00000000000000000000000000000000', {now}, ? from dual where @@in_transaction = 1
on duplicate key update seq = {schema}.seen.seq
returning seq
