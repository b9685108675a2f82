-- insert_once.sql: claims (handler, id) in the caller's transaction
insert into {prefix}seen (identity, fingerprint, seen_at) values (?2, zeroblob(16), {now})
on conflict (identity) do nothing
