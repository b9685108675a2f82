-- 0002_functions: `once`, `publish` and `receive` for callers in any language, inside their own transaction.
-- They do what the library does with the same rows: identities, fingerprints, lanes and limits are those of the core.
-- They run with the caller's rights. MariaDB knows no default arguments, so every argument is given; null means none.

-- What the function `receive` has counted and no runner has added up yet; append-only, so that counting waits for nobody.
create table if not exists {schema}.tally (
    id bigint not null auto_increment primary key,
    name varbinary(100) not null,
    counted_at bigint not null
) engine = innodb;

-- The first 16 bytes of the SHA-256.
create or replace function {schema}.digest(bytes longblob) returns binary(16)
deterministic no sql sql security invoker
return unhex(left(sha2(bytes, 256), 32));

-- The core reads two bytes, little end first, modulo 32: that is the first byte alone.
create or replace function {schema}.lane_of(bytes longblob) returns smallint
deterministic no sql sql security invoker
return cast(conv(left(sha2(bytes, 256), 2), 16, 10) as unsigned) % 32;

create or replace function {schema}.clock_micros() returns bigint
not deterministic no sql sql security invoker
return {now};

-- Version 7: the time in milliseconds, then random bits.
create or replace function {schema}.fresh_id() returns varchar(36) character set ascii
not deterministic no sql sql security invoker
begin
    declare millis char(12) character set ascii;
    declare random char(20) character set ascii;
    set millis = lpad(lower(hex({schema}.clock_micros() div 1000)), 12, '0');
    set random = left(sha2(concat(uuid(), rand(), connection_id()), 256), 20);
    return concat_ws('-', left(millis, 8), substr(millis, 9), concat('7', substr(random, 1, 3)),
        concat(substr('89ab', 1 + conv(substr(random, 4, 1), 16, 10) % 4, 1), substr(random, 5, 3)),
        substr(random, 8, 12));
end;

-- Raises for a field that breaks its limit.
create or replace procedure {schema}.refuse(
    in field varchar(20) character set utf8mb4, in bytes bigint, in least bigint, in most bigint
)
no sql sql security invoker
begin
    declare text_of_error varchar(128) character set utf8mb4;
    if bytes is null then
        set text_of_error = concat('the ', field, ' of a message is null; give it ', least, ' to ', most, ' bytes');
    elseif bytes < least then
        set text_of_error = concat('the ', field, ' of a message is empty; give it ', least, ' to ', most, ' bytes');
    elseif bytes > most then
        set text_of_error = concat('the ', field, ' of a message has ', bytes, ' bytes; the limit is ', most);
    else
        set text_of_error = concat('the ', field, ' of a message contains a NUL byte; encode it first');
    end if;
    signal sqlstate '45000' set message_text = text_of_error;
end;

-- Raises for a message that does not fit into one packet, with all its other columns and what is stored beside it when it
-- becomes a dead letter.
create or replace procedure {schema}.check_packet(in payload_and_headers bigint)
no sql sql security invoker
begin
    if payload_and_headers + 20480 > @@max_allowed_packet then
        signal sqlstate '45000' set message_text =
            'a message does not fit into one packet of the server with its error; raise `max_allowed_packet`, or store the body elsewhere';
    end if;
end;

-- Raises unless a text has so many bytes and no NUL.
create or replace procedure {schema}.check_text(
    in field varchar(20) character set utf8mb4, in bytes longblob, in least bigint, in most bigint
)
no sql sql security invoker
begin
    if bytes is null or octet_length(bytes) not between least and most or instr(bytes, x'00') > 0 then
        call {schema}.refuse(field, octet_length(bytes), least, most);
    end if;
end;

-- Headers as the library keeps them: a list of [name, value], a value that is not UTF-8 as {"base64": "..."}.
-- Takes that form, and an object of names and values. Written anew, because MariaDB reads JSON that others refuse, and a
-- row that the library cannot read would stop its lane.
create or replace function {schema}.stored_headers(headers longtext character set utf8mb4)
returns longtext character set utf8mb4
not deterministic no sql sql security invoker
begin
    declare is_list boolean default json_valid(headers) and json_type(headers) = 'ARRAY';
    declare all_names longtext character set utf8mb4;
    declare name, value longtext character set utf8mb4;
    declare stored longtext character set utf8mb4 default '';
    declare place, bytes int default 0;
    declare is_good boolean default json_valid(headers) and json_type(headers) in ('ARRAY', 'OBJECT');
    if headers is null or (json_valid(headers) and json_type(headers) = 'NULL') then
        return '';
    end if;
    if is_good and not is_list then
        set all_names = json_keys(headers);
    end if;
    while is_good and bytes <= 65536 and place < json_length(headers) do
        if is_list then
            set value = json_extract(headers, concat('$[', place, ']'));
            set is_good = json_type(value) = 'ARRAY' and json_length(value) = 2
                and json_type(json_extract(value, '$[0]')) = 'STRING';
            set name = json_unquote(json_extract(value, '$[0]'));
            set value = json_extract(value, '$[1]');
        else
            set name = json_unquote(json_extract(all_names, concat('$[', place, ']')));
            set value = json_extract(headers, concat('$.', json_quote(name)));
        end if;
        if is_good and json_type(value) = 'OBJECT' then
            set is_good = json_length(value) = 1;
            set value = json_extract(value, '$.base64');
            set is_good = coalesce(
                is_good and json_type(value) = 'STRING' and from_base64(json_unquote(value)) is not null, false
            );
            set bytes = bytes + coalesce(octet_length(from_base64(json_unquote(value))), 0);
            -- In lines of 76 letters, which others refuse.
            set value = concat('{"base64":"', replace(to_base64(from_base64(json_unquote(value))), '\n', ''), '"}');
        else
            set is_good = coalesce(is_good and json_type(value) = 'STRING', false);
            set bytes = bytes + coalesce(octet_length(json_unquote(value)), 0);
            set value = json_quote(json_unquote(value));
        end if;
        set stored = concat(stored, if(place > 0, ',', ''), '[', json_quote(name), ',', value, ']');
        set is_good = is_good and stored is not null;
        -- Each counts 8 bytes more: any number of empty ones would be nothing.
        set bytes = bytes + coalesce(octet_length(name), 0) + 8;
        set place = place + 1;
    end while;
    if not is_good then
        signal sqlstate '45000' set message_text =
            'headers are a JSON object of names and texts, or a list of [name, text]; {"base64": "..."} instead of a text for bytes';
    end if;
    if bytes > 65536 then
        call {schema}.refuse('headers', bytes, 0, 65536);
    end if;
    if json_length(headers) = 0 then
        return '';
    end if;
    return concat('[', stored, ']');
end;

-- 1 the first time that handler and id are committed, else 0; waits for a rival that has not ended yet.
create or replace function {schema}.once(
    handler longtext character set utf8mb4, id longtext character set utf8mb4
) returns boolean
not deterministic modifies sql data sql security invoker
begin
    declare own binary(16) default {schema}.digest(concat(cast(handler as binary), x'01', cast(id as binary)));
    -- A number of this call alone: a row that carries it was written here.
    declare mark bigint default
        -1 - cast(conv(left(sha2(concat(uuid(), rand(), connection_id()), 256), 14), 16, 10) as signed);
    declare found bigint;
    call {schema}.check_text('handler', cast(handler as binary), 1, 100);
    call {schema}.check_text('id', cast(id as binary), 1, 512);
    insert into {schema}.seen (identity, fingerprint, seen_at, seq)
    values (own, x'00000000000000000000000000000000', {schema}.clock_micros(), mark)
    on duplicate key update seq = {schema}.seen.seq;
    -- A snapshot of the caller's may be too old to show a rival's row; then it is not ours.
    select max(s.seq) into found from {schema}.seen s where s.identity = own;
    return coalesce(found = mark, false);
end;

-- Writes to the outbox for the sink of this name; answers the message's id, a fresh one unless it was given.
-- `not_before` is in UTC, whatever the time zone of the session.
create or replace function {schema}.publish_to(
    sink longtext character set utf8mb4, kind longtext character set utf8mb4, payload longblob,
    message_key longtext character set utf8mb4, id longtext character set utf8mb4,
    headers longtext character set utf8mb4, not_before datetime(6)
) returns varchar(512) character set utf8mb4
not deterministic modifies sql data sql security invoker
begin
    declare now_at bigint default {schema}.clock_micros();
    declare due bigint default timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', not_before);
    declare own longtext character set utf8mb4 default coalesce(id, {schema}.fresh_id());
    declare stored longtext character set utf8mb4 default {schema}.stored_headers(headers);
    -- The library's clock ends there; and a date that is none must not mean "at once".
    if not_before is not null and coalesce(due > 253402207200999999, true) then
        signal sqlstate '45000' set message_text = 'not_before of a message is no time before the year 9999; null means at once';
    end if;
    call {schema}.check_text('id', cast(own as binary), 1, 512);
    call {schema}.check_text('kind', cast(kind as binary), 1, 255);
    call {schema}.check_text('sink', cast(sink as binary), 0, 255);
    if message_key is not null then
        call {schema}.check_text('key', cast(message_key as binary), 1, 512);
    end if;
    if payload is null or octet_length(payload) > 16777216 then
        call {schema}.refuse('payload', octet_length(payload), 0, 16777216);
    end if;
    call {schema}.check_packet(octet_length(payload) + octet_length(stored));
    insert into {schema}.outbox
        (sink, lane, scope, id, kind, `key`, headers, payload, not_before, due_at, created_at)
    values (
        cast(sink as binary), {schema}.lane_of(cast(coalesce(message_key, own) as binary)), '', cast(own as binary),
        cast(kind as binary), cast(message_key as binary), stored, payload, due,
        greatest(coalesce(due, now_at), now_at), now_at
    );
    return own;
end;

-- Writes to the outbox for the relay without a name.
create or replace function {schema}.publish(
    kind longtext character set utf8mb4, payload longblob, message_key longtext character set utf8mb4,
    id longtext character set utf8mb4, headers longtext character set utf8mb4, not_before datetime(6)
) returns varchar(512) character set utf8mb4
not deterministic modifies sql data sql security invoker
return {schema}.publish_to('', kind, payload, message_key, id, headers, not_before);

-- Stores a message unless its id is known in this scope: 'new', 'duplicate', or 'conflict' for a known id with other
-- bytes, which is kept apart. A new one locks the head row until the caller's transaction ends.
create or replace function {schema}.receive(
    scope longtext character set utf8mb4, id longtext character set utf8mb4, kind longtext character set utf8mb4,
    payload longblob, message_key longtext character set utf8mb4, headers longtext character set utf8mb4
) returns varchar(9) character set ascii
not deterministic modifies sql data sql security invoker
begin
    declare own_scope longtext character set utf8mb4 default if(coalesce(octet_length(scope), 0) = 0, 'default', scope);
    declare own, own_fingerprint, known binary(16);
    declare own_lane smallint;
    declare place, found bigint;
    declare now_at bigint default {schema}.clock_micros();
    declare stored longtext character set utf8mb4 default {schema}.stored_headers(headers);
    call {schema}.check_text('id', cast(id as binary), 1, 512);
    call {schema}.check_text('kind', cast(kind as binary), 1, 255);
    call {schema}.check_text('scope', cast(own_scope as binary), 1, 255);
    if message_key is not null then
        call {schema}.check_text('key', cast(message_key as binary), 1, 512);
    end if;
    if payload is null or octet_length(payload) > 16777216 then
        call {schema}.refuse('payload', octet_length(payload), 0, 16777216);
    end if;
    call {schema}.check_packet(octet_length(payload) + octet_length(stored));
    set own = {schema}.digest(concat(cast(own_scope as binary), x'00', cast(id as binary)));
    set own_fingerprint = {schema}.digest(concat(cast(kind as binary), x'00', payload));
    -- A copy is recognised without the lock on the head row. The unique key below still decides. `select into` and not
    -- `set`, in which InnoDB would lock what it reads. Where it locks even so, callers that look before they lock the
    -- head row would wait for each other in a circle, so there nobody looks first.
    if @@tx_isolation in ('READ-COMMITTED', 'READ-UNCOMMITTED')
        or (@@tx_isolation = 'REPEATABLE-READ' and (not @@log_bin or @@binlog_format = 'ROW'))
    then
        select max(s.fingerprint) into known from {schema}.seen s where s.identity = own;
    end if;
    if known is not null and @@tx_isolation = 'READ-UNCOMMITTED' then
        -- It may be a row that is rolled back yet; this waits.
        select max(s.fingerprint) into known from {schema}.seen s where s.identity = own lock in share mode;
    end if;
    if known is null then
        update {schema}.head h set h.seq = last_insert_id(h.seq + 1) where h.one = 1;
        if row_count() <> 1 then
            signal sqlstate '45000' set message_text = 'the row of `head` is missing; restore it from a backup';
        end if;
        set place = last_insert_id();
        set own_lane = {schema}.lane_of(cast(coalesce(message_key, id) as binary));
        insert into {schema}.seen (identity, fingerprint, seen_at, seq, lane)
        values (own, own_fingerprint, now_at, place, own_lane)
        on duplicate key update seq = {schema}.seen.seq;
        -- We hold the lock of this row, whoever wrote it; the caller's snapshot may be older.
        select s.seq, s.fingerprint into found, known from {schema}.seen s where s.identity = own for update;
        if found = place then
            insert into {schema}.log
                (lane, seq, received_at, not_before, identity, scope, id, kind, `key`, headers, payload)
            values (
                own_lane, place, now_at, null, own, cast(own_scope as binary), cast(id as binary),
                cast(kind as binary), cast(message_key as binary), stored, payload
            );
            insert into {schema}.tally (name, counted_at) values ('received', now_at);
            return 'new';
        end if;
    end if;
    if known = own_fingerprint then
        insert into {schema}.tally (name, counted_at) values ('duplicate', now_at);
        return 'duplicate';
    end if;
    insert into {schema}.conflict
        (identity, fingerprint, scope, message_id, kind, `key`, headers, payload, not_before, received_at)
    values (
        own, own_fingerprint, cast(own_scope as binary), cast(id as binary), cast(kind as binary),
        cast(message_key as binary), stored, payload, null, now_at
    )
    on duplicate key update received_at = {schema}.conflict.received_at;
    insert into {schema}.tally (name, counted_at) values ('conflict', now_at);
    return 'conflict';
end;
