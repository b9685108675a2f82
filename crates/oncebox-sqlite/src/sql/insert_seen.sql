-- insert_seen.sql: claims identities; the unique index is the referee
insert into {prefix}seen (identity, fingerprint, seq, lane, seen_at) values {rows}
on conflict (identity) do nothing
