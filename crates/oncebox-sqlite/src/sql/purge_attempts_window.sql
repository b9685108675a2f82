-- purge_attempts_window.sql: how far the next ?4 attempts after ?3 go, and how many are old, locks nothing
select max(id), count(*)
from (select id, at from {prefix}attempt where id > ?3 order by id limit ?4 + 0)
where at < {now} - ?2
