-- sweep_move.sql: locks the sweep row
update {schema}.sweep set position = $2 where name = $1
