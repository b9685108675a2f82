-- purge_log_window.sql: locks nothing; how far the first messages of a lane are old
select max(first.seq)
from (
    select l.seq, l.received_at from {schema}.log l where l.lane = ? and l.seq <= ? order by l.seq limit ?
) first
where first.received_at < {now} - ?
