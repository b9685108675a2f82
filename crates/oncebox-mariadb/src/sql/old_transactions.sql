-- old_transactions.sql: locks nothing; transactions that began before so many microseconds ago
select cast(t.trx_mysql_thread_id as signed), coalesce(p.user, ''), coalesce(p.host, ''), coalesce(p.command, ''),
    timestampdiff(second, t.trx_started, now()) * 1000000 + ?
from information_schema.innodb_trx t
left join information_schema.processlist p on p.id = t.trx_mysql_thread_id
where t.trx_mysql_thread_id <> connection_id()
  and timestampdiff(second, t.trx_started, now()) * 1000000 + ? > ?
order by t.trx_started
limit 10
