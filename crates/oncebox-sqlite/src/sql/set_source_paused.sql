-- set_source_paused.sql: pauses or resumes one source
insert into {prefix}source (name, paused, changed_at) values (?2, ?3, {now})
on conflict (name) do update set paused = excluded.paused, changed_at = excluded.changed_at
