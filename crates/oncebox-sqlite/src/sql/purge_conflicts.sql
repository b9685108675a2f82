-- purge_conflicts.sql: removes old conflicts
delete from {prefix}conflict
where rowid in (
    select rowid from {prefix}conflict where received_at < {now} - ?2 order by received_at limit ?3 + 0
)
returning 1
