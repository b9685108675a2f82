-- sweep_move.sql: locks the sweep row
update {schema}.sweep set position = ?, identity = ? where name = ?
