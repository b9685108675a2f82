-- search_seen.sql: locks nothing
select seq, lane from {schema}.seen where identity = $1
