-- free_lanes.sql: locks nothing; lanes of one handler that have messages and no fresh mark, served longest ago first
select c.lane
from {schema}.handler h
straight_join {schema}.cursor c on c.handler = h.name
where h.name = ? and not h.paused
  and (c.token is null or c.started_at <= {now} - ?)
  and exists (select 1 from {schema}.log l where l.lane = c.lane and l.seq > c.position)
order by c.started_at, c.lane
limit ?
