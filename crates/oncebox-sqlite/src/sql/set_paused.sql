-- set_paused.sql: pauses or resumes one handler
update {prefix}handler set paused = ?2 where name = ?1 returning 1
