-- no_jit.sql: locks nothing; until the end of this transaction nothing is compiled just in time
select set_config('jit', 'off', true)
