-- A role for runners and relays: reads and writes the store's rows, and cannot change its tables or functions.
-- Run it as the role that migrates; its later migrations then grant the same for what they add.
grant usage on schema oncebox to shop_runner;
grant select, insert, update, delete on all tables in schema oncebox to shop_runner;
grant execute on all functions in schema oncebox to shop_runner;
revoke insert, update, delete on oncebox.migration from shop_runner;
revoke update, delete on oncebox.audit from shop_runner;
alter default privileges in schema oncebox grant select, insert, update, delete on tables to shop_runner;
alter default privileges in schema oncebox grant execute on functions to shop_runner;
