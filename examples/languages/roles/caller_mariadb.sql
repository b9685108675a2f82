-- A user that only calls `once`, `publish` and `receive`: it adds rows, and can neither read messages nor remove them.
-- MariaDB asks for `update` of a whole table where a function says `on duplicate key update`.
grant execute on oncebox.* to shop_caller;
grant insert, update, select (identity, fingerprint, seq) on oncebox.seen to shop_caller;
grant insert, update, select (received_at) on oncebox.conflict to shop_caller;
grant select, update on oncebox.head to shop_caller;
grant insert on oncebox.log to shop_caller;
grant insert on oncebox.outbox to shop_caller;
grant insert on oncebox.tally to shop_caller;
