-- purge_seen_window.sql: how far the next ?4 remembered ids after ?3 go, and how many are old, locks nothing
select max(entry), count(*)
from (select entry, seen_at from {prefix}seen where entry > ?3 order by entry limit ?4 + 0)
where seen_at < {now} - ?2
