-- count_purgeable.sql: how many ids, messages and other rows a purge would remove by now, locks nothing
with done as materialized (select lane, min(position) as position from {prefix}cursor group by lane)
select
    (select count(*) from {prefix}seen as seen
     where seen.seen_at < {now} - ?2
       and not exists (
           select 1 from {prefix}delivery as delivery
           where delivery.identity = seen.identity and not (delivery.state = 4 and delivery.due_at < {now} - ?2)
       )
       and (seen.seq is null
         or seen.seq <= (select done.position from done where done.lane = seen.lane)
         or not exists (
             select 1 from {prefix}log as log where log.place = (seen.lane << 48) + seen.seq
         ))),
    (select count(*) from done
     join {prefix}log as log
         on log.place >= done.lane << 48 and log.place <= (done.lane << 48) + done.position
     where log.received_at < {now} - ?3),
    (select count(*) from {prefix}delivery where state = 4 and due_at < {now} - ?2)
    + (select count(*) from {prefix}attempt as attempt
       where attempt.at < {now} - ?2
         and not exists (
             select 1 from {prefix}delivery as delivery
             where delivery.identity = attempt.identity and delivery.handler = attempt.handler
               and not (delivery.state = 4 and delivery.due_at < {now} - ?2)
         ))
    + (select count(*) from {prefix}conflict where received_at < {now} - ?2)
    + (select count(*) from {prefix}counter where minute > 0 and minute < ({now} - ?4) / 60000000)
    + (select count(*) from {prefix}response where expires_at <= {now} and leased_until <= {now})
