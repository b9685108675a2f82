-- receive_few.sql: a whole receive in one go: numbers off the head, seen (the unique index is the referee), the log
-- Each row says how far its number is from the last one given out. Rows of nulls fill up to a size that is prepared.
-- Answers in a row each: whether the log still has the message of an identity and a time at the place where this process
-- appended last; when the last one of these was seen; how many were new, and the last number.
begin immediate;
update {prefix}head set seq = seq + ?
returning exists (select 1 from {prefix}log where place = ? and identity = ? and received_at = ?);
insert into {prefix}seen (identity, fingerprint, seq, lane, seen_at)
select v.column1, v.column2, (select seq from {prefix}head) - v.column3, v.column4, (select {now})
from (values {seen}) as v
where v.column1 is not null and exists (select 1 from {prefix}head)
on conflict (identity) do nothing;
select seen_at from {prefix}seen where identity = ?;
insert into {prefix}log (place, identity, scope, id, kind, key, headers, payload, not_before, received_at)
select v.column1 + s.seq, v.column3, v.column4, v.column5, v.column6, v.column7, v.column8, v.column9, v.column10,
    s.seen_at
from (values {log}) as v
cross join {prefix}seen as s on s.identity = v.column3 and s.seq = (select seq from {prefix}head) - v.column2;
select changes(), seq from {prefix}head;
commit
