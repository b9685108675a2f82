-- wanted_kinds.sql: locks nothing
select kinds from {schema}.handler
