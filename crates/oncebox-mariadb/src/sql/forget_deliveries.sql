-- forget_deliveries.sql: locks the delivery rows of one handler
delete from {schema}.delivery where handler = ?
