-- search_places.sql: locks nothing; a short range of each lane. The lanes are written out because of what MariaDB makes of it: one
-- range for each, where a join would read each lane from its beginning.
select l.lane, l.seq
from {schema}.log l force index (primary)
where l.lane in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29,
    30, 31) and l.seq > ? and l.seq <= ?
  and (? is null or l.scope = ?)
  and (? is null or l.id = ?)
  and (? is null or l.kind = ?)
  and (? is null or left(l.kind, length(?)) = ?)
  and (? is null or l.`key` = ?)
  and (? is null or l.received_at >= ?)
  and (? is null or l.received_at < ?)
order by l.seq desc
limit ?
