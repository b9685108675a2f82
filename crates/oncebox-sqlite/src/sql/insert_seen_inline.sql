-- insert_seen_inline.sql: claims identities without a log row and answers which were new
insert into {prefix}seen (identity, fingerprint, seen_at) values {rows}
on conflict (identity) do nothing
returning identity
