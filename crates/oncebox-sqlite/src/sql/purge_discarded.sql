-- purge_discarded.sql: removes deliveries given up long ago
delete from {prefix}delivery
where id in (select id from {prefix}delivery where state = 4 and due_at < {now} - ?2 order by due_at limit ?3 + 0)
returning 1
