-- next_seqs.sql: takes ?2 numbers off the head and reads the clock
-- And whether the log still has the message ?4 of the time ?5 at the place ?3, where this process appended last.
update {prefix}head set seq = seq + ?2
returning seq, {now}, exists (select 1 from {prefix}log where place = ?3 and identity = ?4 and received_at = ?5)
