-- purge_log.sql: removes up to ?5 old messages from the beginning of one lane
delete from {prefix}log
where place in (
    select place from (
        select place, received_at from {prefix}log
        where place >= ?3 << 48 and place <= (?3 << 48) + ?4
        order by place limit ?5 + 0
    )
    where received_at < {now} - ?2
)
returning 1
