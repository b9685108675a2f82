-- set_paused.sql: locks one handler row
update {schema}.handler set paused = ? where name = ?
