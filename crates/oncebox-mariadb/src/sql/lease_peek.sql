-- lease_peek.sql: locks nothing; what a handler could lease
select
    (select cast(h.paused as signed) from {schema}.handler h where h.name = ?),
    cast(coalesce((select min(d.ready_at) from {schema}.delivery d where d.handler = ?) <= {now}, 0) as signed),
    (select min(d.ready_at) from {schema}.delivery d where d.handler = ? and d.ready_at > {now}) - {now}
