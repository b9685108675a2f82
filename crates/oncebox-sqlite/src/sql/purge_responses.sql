-- purge_responses.sql: removes responses whose time is over
delete from {prefix}response
where identity in (
    select identity from {prefix}response
    where expires_at <= {now} and leased_until <= {now}
    order by expires_at limit ?2 + 0
)
returning 1
