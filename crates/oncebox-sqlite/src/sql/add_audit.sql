-- add_audit.sql: writes one change down
insert into {prefix}audit (at, actor, action, target, details) values ({now}, ?2, ?3, ?4, ?5)
returning number, at
