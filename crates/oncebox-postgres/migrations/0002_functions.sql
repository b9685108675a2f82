-- 0002_functions: `once`, `publish` and `receive` for callers in any language, inside their own transaction.
-- They do what the library does with the same rows: identities, fingerprints, lanes and limits are those of the core.
-- They run with the caller's rights, and name everything with its schema, so no search_path matters.
-- Settings a caller may make: oncebox.notify = off, and oncebox.payload_limit in bytes.

-- What the function `receive` has counted and no runner has added up yet. Append-only and without an index, so that
-- counting waits for nobody; unlogged, so that a copy, which writes nothing else, does not wait for the disk either.
create unlogged table {schema}.tally (
    name text collate "C" not null,
    counted_at bigint not null
);

create function {schema}.clock_micros() returns bigint
language sql volatile parallel safe
as $$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint $$;

-- The first 16 bytes of the SHA-256, in the type the tables keep them in.
create function {schema}.digest(bytes bytea) returns uuid
language sql immutable strict parallel safe
as $$ select encode(substr(sha256(bytes), 1, 16), 'hex')::uuid $$;

-- The core reads two bytes, little end first, modulo 32: that is the first byte alone.
create function {schema}.lane_of(bytes bytea) returns smallint
language sql immutable strict parallel safe
as $$ select (get_byte(sha256(bytes), 0) % 32)::smallint $$;

-- Version 7: the time in milliseconds, then random bits.
create function {schema}.fresh_id() returns text
language sql volatile parallel safe
as $$
    select encode(
        set_bit(set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                placing substr(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 3)
                from 1 for 6
            ), 52, 1), 53, 1),
        'hex'
    )::uuid::text
$$;

create function {schema}.payload_limit() returns integer
language sql stable
as $$ select coalesce(nullif(current_setting('oncebox.payload_limit', true), '')::integer, 16777216) $$;

-- Raises for the first field that breaks a limit. Only called when one does, so that good messages do not pay for it.
create function {schema}.refuse(scope text, sink text, id text, kind text, key text, payload bytea) returns void
language plpgsql
as $$
declare
    wrong record;
begin
    select f.field, f.bytes, f.least, f.most into wrong
    from (values
        (1, 'id', octet_length(convert_to(id, 'UTF8')), 1, 512),
        (2, 'kind', octet_length(convert_to(kind, 'UTF8')), 1, 255),
        (3, 'scope', octet_length(convert_to(scope, 'UTF8')), 0, 255),
        (4, 'sink', octet_length(convert_to(sink, 'UTF8')), 0, 255),
        (5, 'key', case when key is null then 1 else octet_length(convert_to(key, 'UTF8')) end, 1, 512),
        (6, 'payload', octet_length(payload), 0, {schema}.payload_limit())
    ) as f (place, field, bytes, least, most)
    where (f.bytes between f.least and f.most) is not true
    order by f.place
    limit 1;
    if wrong.bytes is null then
        raise exception 'the % of a message is null; give it % to % bytes', wrong.field, wrong.least, wrong.most
            using errcode = 'null_value_not_allowed';
    elsif wrong.bytes < wrong.least then
        raise exception 'the % of a message is empty; give it % to % bytes', wrong.field, wrong.least, wrong.most
            using errcode = 'invalid_parameter_value';
    elsif wrong.field = 'payload' then
        raise exception 'the payload of a message has % bytes; the limit is % (raise it with the setting '
            'oncebox.payload_limit, or store the body elsewhere and send its address)', wrong.bytes, wrong.most
            using errcode = 'invalid_parameter_value';
    end if;
    raise exception 'the % of a message has % bytes; the limit is % (use a hash of it, or shorten it)',
        wrong.field, wrong.bytes, wrong.most
        using errcode = 'invalid_parameter_value';
end
$$;

-- Headers as the library keeps them: a list of [name, value], a value that is not UTF-8 as {"base64": "..."}.
-- Takes that form, and an object of names and values; `json` and not `jsonb`, which drops repeated names.
create function {schema}.stored_headers(headers json) returns text
language plpgsql immutable
as $$
declare
    form constant text := 'give a list of [name, value], or an object of names and values; a value is a text, or '
        '{"base64": "..."} for bytes';
    stored text;
    bytes bigint;
    wrong text;
begin
    if headers is null or json_typeof(headers) = 'null' then
        return '';
    elsif json_typeof(headers) = 'object' then
        select json_agg(json_build_array(pair.key, pair.value)) into headers from json_each(headers) as pair;
        headers := coalesce(headers, '[]'::json);
    elsif json_typeof(headers) <> 'array' then
        raise exception 'the headers of a message are a JSON %; %', json_typeof(headers), form
            using errcode = 'invalid_parameter_value';
    end if;
    if json_array_length(headers) = 0 then
        return '';
    end if;
    select pair.value::text into wrong
    from json_array_elements(headers) as pair
    where case
        when json_typeof(pair.value) <> 'array' then true
        when json_array_length(pair.value) <> 2 or json_typeof(pair.value -> 0) <> 'string' then true
        when json_typeof(pair.value -> 1) = 'string' then false
        when json_typeof(pair.value -> 1) <> 'object' then true
        else json_typeof(pair.value -> 1 -> 'base64') is distinct from 'string'
            or (select count(*) from json_object_keys(pair.value -> 1)) <> 1
    end
    limit 1;
    if found then
        raise exception 'a header of a message is %; %', left(wrong, 80), form
            using errcode = 'invalid_parameter_value';
    end if;
    select
        '[' || string_agg(
            '[' || to_json(pair.value ->> 0)::text || ','
            || case json_typeof(pair.value -> 1)
                when 'string' then to_json(pair.value ->> 1)::text
                else '{"base64":"' || translate(encode(decode(pair.value -> 1 ->> 'base64', 'base64'), 'base64'), E'\n', '') || '"}'
            end || ']', ',' order by pair.ordinality
        ) || ']',
        -- Each counts 8 bytes more: any number of empty ones would be nothing.
        sum(
            8 + octet_length(convert_to(pair.value ->> 0, 'UTF8'))
            + case json_typeof(pair.value -> 1)
                when 'string' then octet_length(convert_to(pair.value ->> 1, 'UTF8'))
                else octet_length(decode(pair.value -> 1 ->> 'base64', 'base64'))
            end
        )
    into stored, bytes
    from json_array_elements(headers) with ordinality as pair (value, ordinality);
    if bytes > 65536 then
        raise exception 'the headers of a message have % bytes; the limit is 65536', bytes
            using errcode = 'invalid_parameter_value';
    end if;
    return stored;
end
$$;

create function {schema}.stored_time(at timestamptz) returns bigint
language plpgsql immutable
as $$
begin
    -- The library's clock ends there; a row it cannot read would stop its lane.
    if not isfinite(at) or at > '9999-12-30 22:00:00+00' then
        raise exception 'not_before of a message is %; give it a time before the year 9999, or null for at once', at
            using errcode = 'invalid_parameter_value';
    end if;
    return (extract(epoch from at) * 1000000)::bigint;
end
$$;

-- The bodies below are short on purpose: in every new transaction PL/pgSQL sets up each expression again, and that, not
-- the work, is what a call costs over the plain statements.

-- True the first time that handler and id are committed; waits for a rival that has not ended yet.
create function {schema}.once(handler text, id text) returns boolean
language plpgsql volatile
as $$
begin
    if (octet_length(convert_to(handler, 'UTF8')) between 1 and 100
        and octet_length(convert_to(id, 'UTF8')) between 1 and 512) is not true
    then
        raise exception 'the handler name has % bytes and the id %; give them 1 to 100 and 1 to 512 bytes',
            coalesce(octet_length(convert_to(handler, 'UTF8')), 0), coalesce(octet_length(convert_to(id, 'UTF8')), 0)
            using errcode = 'invalid_parameter_value';
    end if;
    insert into {schema}.seen (identity, fingerprint, seen_at)
    values (
        {schema}.digest(convert_to(handler, 'UTF8') || '\x01'::bytea || convert_to(id, 'UTF8')),
        '00000000-0000-0000-0000-000000000000', {schema}.clock_micros()
    )
    on conflict (identity) do nothing;
    return found;
end
$$;

-- Writes to the outbox for the sink of this name; answers the message's id, a fresh one unless it was given.
create function {schema}.publish_to(
    sink text, kind text, payload bytea, key text default null, id text default null, headers json default null,
    not_before timestamptz default null
) returns text
language plpgsql volatile
as $$
declare
    now_at constant bigint := {schema}.clock_micros();
begin
    if id is null then
        id := {schema}.fresh_id();
    end if;
    if (octet_length(convert_to(id, 'UTF8')) between 1 and 512
        and octet_length(convert_to(kind, 'UTF8')) between 1 and 255
        and octet_length(convert_to(sink, 'UTF8')) <= 255
        and (key is null or octet_length(convert_to(key, 'UTF8')) between 1 and 512)
        and octet_length(payload) <= {schema}.payload_limit()) is not true
    then
        perform {schema}.refuse('', sink, id, kind, key, payload);
    end if;
    insert into {schema}.outbox (sink, lane, scope, id, kind, key, headers, payload, not_before, due_at, created_at)
    values (
        sink, {schema}.lane_of(convert_to(coalesce(key, id), 'UTF8')), '', id, kind, key,
        case when headers is null then '' else {schema}.stored_headers(headers) end, payload,
        case when not_before is not null then {schema}.stored_time(not_before) end,
        case when not_before is null then now_at else greatest({schema}.stored_time(not_before), now_at) end, now_at
    );
    -- At most one hint in 10 ms for each session: transactions that notify commit one after the other. A rollback
    -- takes the setting back together with the hint.
    if now_at - coalesce(nullif(current_setting('oncebox.hinted_at', true), '')::bigint, 0) not between 0 and 9999
        and current_setting('oncebox.notify', true) is distinct from 'off'
    then
        perform set_config('oncebox.hinted_at', now_at::text, false), pg_notify('oncebox.' || trim('{schema}', '"'), '');
    end if;
    return id;
end
$$;

-- Writes to the outbox for the relay without a name.
create function {schema}.publish(
    kind text, payload bytea, key text default null, id text default null, headers json default null,
    not_before timestamptz default null
) returns text
language sql volatile
as $$ select {schema}.publish_to('', kind, payload, key, id, headers, not_before) $$;

-- Stores a message unless its id is known in this scope: 'new', 'duplicate', or 'conflict' for a known id with other
-- bytes, which is kept apart. A new one locks the head row until the caller's transaction ends.
create function {schema}.receive(
    scope text, id text, kind text, payload bytea, key text default null, headers json default null,
    not_before timestamptz default null
) returns text
language plpgsql volatile
as $$
declare
    own_identity uuid;
    own_fingerprint uuid;
    known uuid;
    place bigint;
    now_at bigint;
begin
    if scope is null or scope = '' then
        scope := 'default';
    end if;
    if (octet_length(convert_to(id, 'UTF8')) between 1 and 512
        and octet_length(convert_to(kind, 'UTF8')) between 1 and 255
        and octet_length(convert_to(scope, 'UTF8')) <= 255
        and (key is null or octet_length(convert_to(key, 'UTF8')) between 1 and 512)
        and octet_length(payload) <= {schema}.payload_limit()) is not true
    then
        perform {schema}.refuse(scope, '', id, kind, key, payload);
    end if;
    own_identity := {schema}.digest(convert_to(scope, 'UTF8') || '\x00'::bytea || convert_to(id, 'UTF8'));
    own_fingerprint := {schema}.digest(convert_to(kind, 'UTF8') || '\x00'::bytea || payload);
    -- An id may be purged between the insert that met it and the look at its fingerprint; then it is new after all.
    for round in 1..5 loop
        -- A copy is recognised without the lock on the head row. The unique key below still decides.
        select seen.fingerprint into known from {schema}.seen where seen.identity = own_identity;
        if found then
            now_at := {schema}.clock_micros();
            if known = own_fingerprint then
                insert into {schema}.tally (name, counted_at) values ('duplicate', now_at);
                return 'duplicate';
            end if;
            insert into {schema}.conflict
                (identity, fingerprint, scope, message_id, kind, key, headers, payload, not_before, received_at)
            values (
                own_identity, own_fingerprint, scope, id, kind, key,
                case when headers is null then '' else {schema}.stored_headers(headers) end, payload,
                case when not_before is not null then {schema}.stored_time(not_before) end, now_at
            )
            on conflict (identity, fingerprint) do nothing;
            insert into {schema}.tally (name, counted_at) values ('conflict', now_at);
            return 'conflict';
        end if;
        update {schema}.head set seq = head.seq + 1 returning head.seq, {schema}.clock_micros() into place, now_at;
        insert into {schema}.seen (identity, fingerprint, seen_at, seq, lane)
        values (
            own_identity, own_fingerprint, now_at, place, {schema}.lane_of(convert_to(coalesce(key, id), 'UTF8'))
        )
        on conflict (identity) do nothing;
        if found then
            insert into {schema}.log
                (lane, seq, identity, scope, id, kind, key, headers, payload, not_before, received_at)
            values (
                {schema}.lane_of(convert_to(coalesce(key, id), 'UTF8')), place, own_identity, scope, id, kind, key,
                case when headers is null then '' else {schema}.stored_headers(headers) end, payload,
                case when not_before is not null then {schema}.stored_time(not_before) end, now_at
            );
            insert into {schema}.tally (name, counted_at) values ('received', now_at);
            -- No pause between hints as in `publish`: these transactions commit one after the other anyway.
            if current_setting('oncebox.notify', true) is distinct from 'off' then
                perform pg_notify('oncebox.' || trim('{schema}', '"'), '');
            end if;
            return 'new';
        end if;
    end loop;
    raise exception 'message id `%` vanishes while it is received; try again', id using errcode = 'serialization_failure';
end
$$;

-- The same for a payload that is text: its UTF-8 bytes. Without these, an untyped literal would be read in the escape
-- format of bytea, in which a backslash is not a backslash.
create function {schema}.publish_to(
    sink text, kind text, payload text, key text default null, id text default null, headers json default null,
    not_before timestamptz default null
) returns text
language sql volatile
as $$ select {schema}.publish_to(sink, kind, convert_to(payload, 'UTF8'), key, id, headers, not_before) $$;

create function {schema}.publish(
    kind text, payload text, key text default null, id text default null, headers json default null,
    not_before timestamptz default null
) returns text
language sql volatile
as $$ select {schema}.publish_to('', kind, convert_to(payload, 'UTF8'), key, id, headers, not_before) $$;

create function {schema}.receive(
    scope text, id text, kind text, payload text, key text default null, headers json default null,
    not_before timestamptz default null
) returns text
language sql volatile
as $$ select {schema}.receive(scope, id, kind, convert_to(payload, 'UTF8'), key, headers, not_before) $$;
