-- A user for runners and relays: reads and writes the store's rows, and cannot change its tables or functions.
-- Run it as the user that migrates, and again after a migration that adds a table.
grant select, execute on oncebox.* to shop_runner;
grant insert, update, delete on oncebox.`attempt` to shop_runner;
grant insert on oncebox.`audit` to shop_runner;
grant insert, update, delete on oncebox.`conflict` to shop_runner;
grant insert, update, delete on oncebox.`counter` to shop_runner;
grant insert, update, delete on oncebox.`cursor` to shop_runner;
grant insert, update, delete on oncebox.`delivery` to shop_runner;
grant insert, update, delete on oncebox.`handler` to shop_runner;
grant insert, update, delete on oncebox.`head` to shop_runner;
grant insert, update, delete on oncebox.`log` to shop_runner;
grant insert, update, delete on oncebox.`outbox` to shop_runner;
grant insert, update, delete on oncebox.`relay` to shop_runner;
grant insert, update, delete on oncebox.`replay` to shop_runner;
grant insert, update, delete on oncebox.`response` to shop_runner;
grant insert, update, delete on oncebox.`seen` to shop_runner;
grant insert, update, delete on oncebox.`source` to shop_runner;
grant insert, update, delete on oncebox.`sweep` to shop_runner;
grant insert, update, delete on oncebox.`tally` to shop_runner;
grant insert, update, delete on oncebox.`token` to shop_runner;
