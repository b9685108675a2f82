-- purge_attempts.sql: removes old attempts with ids in (?3, ?4] whose delivery is gone
delete from {prefix}attempt
where id > ?3 and id <= ?4 and at < {now} - ?2
  and not exists (
      select 1 from {prefix}delivery as delivery
      where delivery.identity = {prefix}attempt.identity and delivery.handler = {prefix}attempt.handler
  )
returning 1
