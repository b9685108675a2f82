-- next_seqs.sql: takes ?2 numbers off the head and reads the clock
update {prefix}head set seq = seq + ?2 returning seq, {now}
