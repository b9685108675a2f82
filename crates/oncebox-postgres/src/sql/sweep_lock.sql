-- sweep_lock.sql: locks the sweep row, skips it when another purge has it
select position, (pg_relation_size('{schema}.seen') / current_setting('block_size')::bigint)::bigint as pages
from {schema}.sweep where name = $1 for update skip locked
