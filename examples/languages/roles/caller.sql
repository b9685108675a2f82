-- A role that only calls `once`, `publish` and `receive`: it adds rows, and can neither read messages nor remove them.
grant usage on schema oncebox to shop_caller;
grant insert, select (identity, fingerprint) on oncebox.seen to shop_caller;
grant insert, select (identity, fingerprint) on oncebox.conflict to shop_caller;
grant select, update on oncebox.head to shop_caller;
grant insert on oncebox.log, oncebox.outbox, oncebox.tally to shop_caller;
grant execute on all functions in schema oncebox to shop_caller;
