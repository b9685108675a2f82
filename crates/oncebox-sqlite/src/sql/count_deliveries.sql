-- count_deliveries.sql: counts up to ?12 of the deliveries that match, locks nothing; ?13 is a state, ?14 whether it has failed
select count(*) from (
select 1
from {prefix}delivery
where (?1 is null or id in (select value from json_each(?1)))
  and (?2 is null or handler = ?2)
  and (?3 is null or scope = ?3)
  and (?4 is null or message_id = ?4)
  and (?5 is null or kind = ?5)
  and (?6 is null or key = ?6)
  and (?7 is null or instr(last_error, ?7) > 0)
  and (?8 is null or received_at >= ?8)
  and (?9 is null or received_at < ?9)
  and (?10 is null or id > ?10)
  and (?11 is null or id <= ?11)
  and (?13 is null or state = ?13)
  and (?14 is null or (last_error is not null) = ?14)
limit ?12 + 0
)
