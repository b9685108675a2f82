-- rename_delivery.sql: locks the delivery rows of one handler
update {schema}.delivery set handler = ? where handler = ?
