-- purge_log_lanes.sql: lanes whose oldest message is old and done for every handler, locks nothing
select done.lane, done.position
from (select lane, min(position) as position from {prefix}cursor group by lane) as done
where (
    select received_at from {prefix}log
    where place >= done.lane << 48 and place <= (done.lane << 48) + done.position
    order by place limit 1
) < {now} - ?2
order by done.lane
