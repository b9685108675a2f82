-- purge_log_lanes.sql: locks nothing; lanes whose oldest message is old and done for every handler
select done.lane, done.position
from (select c.lane, min(c.position) as position from {schema}.cursor c group by c.lane) done
where (
    select l.received_at from {schema}.log l
    where l.lane = done.lane and l.seq <= done.position
    order by l.seq limit 1
) < {now} - ?
order by done.lane
