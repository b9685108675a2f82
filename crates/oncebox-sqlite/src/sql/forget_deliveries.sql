-- forget_deliveries.sql: removes the deliveries of one handler
delete from {prefix}delivery where handler = ?1
