-- set_paused.sql: locks one handler row
update {schema}.handler set paused = $2 where name = $1
