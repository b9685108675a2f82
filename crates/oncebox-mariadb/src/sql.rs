//! The statements: one file each in `sql/`, with the schema's name filled in once, and the few texts that are put
//! together here because they are sent as they are, several in one round trip.
//!
//! `{now}` is the database's clock in microseconds plus the store's shift. The shift is a number in the text, because
//! MariaDB numbers no parameters; outside tests it is zero, so a text stays the same and is prepared once.

use std::fmt::Write;
use std::sync::Arc;

use oncebox_core::store::{MoveLanes, ReadLanes, TxLimits};
use oncebox_core::{Error, Kinds, LANES};
use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql};

/// A statement with the schema's name in it. Values go in as bound parameters, or as numbers and hexadecimal bytes.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    template: Arc<str>,
    unshifted: Arc<str>,
}

impl Statement {
    pub(crate) fn render(text: &str, schema: &Schema) -> Self {
        // Comments are for readers of the file.
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        let template: Arc<str> = lines.join("\n").replace("{schema}", &schema.quoted()).into();
        Self { unshifted: shifted(&template, 0).into(), template }
    }

    /// The text at this shift of the clock.
    pub(crate) fn text(&self, shift: i64) -> Arc<str> {
        if shift == 0 { self.unshifted.clone() } else { shifted(&self.template, shift).into() }
    }

    /// The statement, ready for its parameters.
    pub(crate) fn query<'q>(&self, shift: i64) -> Query<'q, MySql, MySqlArguments> {
        sqlx::query(AssertSqlSafe(self.text(shift)))
    }
}

fn shifted(template: &str, shift: i64) -> String {
    template.replace("{now}", &now(shift))
}

/// By the clock of the server, whatever the time zone of the session.
fn now(shift: i64) -> String {
    format!("(timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + {shift})")
}

/// An insert of many rows, in a few fixed sizes so that prepared statements are found again.
#[derive(Debug)]
pub(crate) struct Insert {
    template: String,
    row: String,
    sizes: Vec<(usize, Arc<str>)>,
}

/// How many rows one statement inserts: round numbers, because people choose those for batches, and every small one,
/// because callers that come at the same time make small groups.
const SIZES: [usize; 16] = [1000, 500, 250, 100, 50, 20, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1];

impl Insert {
    fn new(text: &str, row: &str, schema: &Schema) -> Self {
        let template = Statement::render(text, schema).template.to_string();
        let sizes = SIZES.iter().map(|size| (*size, filled(&template, row, *size, 0).into())).collect();
        Self { template, row: row.to_owned(), sizes }
    }

    /// Cuts `rows` into pieces of at most so many bytes, or of one row, and gives the statement for each.
    pub(crate) fn pieces<'a, T>(
        &'a self,
        mut rows: &'a [T],
        shift: i64,
        most_bytes: usize,
        bytes: impl Fn(&T) -> usize + 'a,
    ) -> impl Iterator<Item = (Arc<str>, &'a [T])> {
        std::iter::from_fn(move || {
            let mut sum = 0;
            let fitting = rows.iter().take_while(|row| {
                sum += bytes(row);
                sum <= most_bytes
            });
            let most = fitting.count().max(1).min(rows.len());
            let (size, text) = self.sizes.iter().find(|(size, _)| *size <= most)?;
            let (piece, rest) = rows.split_at(*size);
            rows = rest;
            let text = if shift == 0 {
                text.clone()
            } else {
                filled(&self.template, &self.row, *size, shift).into()
            };
            Some((text, piece))
        })
    }
}

fn filled(template: &str, row: &str, size: usize, shift: i64) -> String {
    shifted(&template.replace("{rows}", &vec![row; size].join(",")), shift)
}

/// A query with this text; its parameters are bound by the caller.
pub(crate) fn query<'q>(text: Arc<str>) -> Query<'q, MySql, MySqlArguments> {
    sqlx::query(AssertSqlSafe(text))
}

/// A checked schema name: MariaDB calls it a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schema(String);

impl Schema {
    /// Takes `[a-z_][a-z0-9_]{0,40}` and nothing else.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let mut bytes = name.bytes();
        let first = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let rest = bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if first && rest && name.len() <= 41 {
            return Ok(Self(name.to_owned()));
        }
        Err(Error::invalid(format!(
            "schema name `{}` is not allowed; use 1 to 41 lower-case letters, digits and underscores, \
             with no digit first",
            name.escape_debug()
        )))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    pub(crate) fn quoted(&self) -> String {
        format!("`{}`", self.0)
    }
}

/// What makes the schema itself, before there is a table to ask, and keeps migrators apart.
pub(crate) const CREATE_SCHEMA: &str = "create database if not exists {schema}";
pub(crate) const DROP_SCHEMA: &str = "drop database if exists {schema}";
pub(crate) const SCHEMA_EXISTS: &str =
    "select count(*) from information_schema.schemata where schema_name = ?";
pub(crate) const MIGRATION_LOCK: &str = "select get_lock(?, 60)";
pub(crate) const MIGRATION_UNLOCK: &str = "do release_lock(?)";

/// Notes a migration as applied, in a script without parameters.
pub(crate) fn migration_row(schema: &Schema, version: i32, name: &str, checksum: &str) -> String {
    let now = now(0);
    format!(
        "insert into {}.migration (version, name, checksum, applied_at)\n\
         values ({version}, '{name}', '{checksum}', {now})\n\
         on duplicate key update version = version;\n",
        schema.quoted()
    )
}

/// Begins a transaction of our own. What is set for it is set back by [`END`].
///
/// A process that stops for good must not keep its locks for good, hence the limits.
pub(crate) const BEGIN: &str = "set @oncebox_idle = @@idle_transaction_timeout, \
     @oncebox_lock = @@innodb_lock_wait_timeout, @oncebox_table = @@lock_wait_timeout, \
     idle_transaction_timeout = 30, innodb_lock_wait_timeout = 30, lock_wait_timeout = 30; \
     set transaction isolation level read committed; start transaction";
/// How many answers [`BEGIN`] gives.
pub(crate) const BEGIN_ANSWERS: usize = 3;
pub(crate) const END: &str = "set idle_transaction_timeout = @oncebox_idle, \
     innodb_lock_wait_timeout = @oncebox_lock, lock_wait_timeout = @oncebox_table";
/// Fails at once (1205) instead of waiting for a lock; [`END`] sets it back.
pub(crate) const NO_WAIT: &str = "set innodb_lock_wait_timeout = 0";
pub(crate) const COMMIT: &str = "commit";
pub(crate) const ROLLBACK: &str = "rollback";

/// Begins a handler's transaction, with its limits and its isolation level.
///
/// It is an XA transaction, because in one of these MariaDB refuses whatever would end it before its time: a commit or
/// rollback of the handler's own, and every statement that commits by itself, such as `create table`. After a deadlock,
/// which undoes all of it, MariaDB refuses every further statement. Autocommit is off besides, so that nothing is
/// committed one by one if a handler should manage to end it nevertheless.
pub(crate) fn begin_transaction(limits: TxLimits, marker: u64) -> String {
    // Zero would mean no limit at all, and whole seconds are all that some of these know.
    let statement = limits.statement.as_secs_f64().clamp(0.001, 31_536_000.0);
    let seconds = limits.statement.as_secs_f64().ceil().clamp(1.0, 31_536_000.0);
    format!(
        "set @oncebox_autocommit = @@autocommit, @oncebox_statement = @@max_statement_time, \
         @oncebox_idle = @@idle_transaction_timeout, @oncebox_lock = @@innodb_lock_wait_timeout, \
         @oncebox_table = @@lock_wait_timeout, autocommit = 0, \
         max_statement_time = {statement}, idle_transaction_timeout = {seconds}, \
         innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}; \
         set transaction isolation level read committed; xa start {}",
        name(marker)
    )
}

/// What [`begin_transaction`] has set, set back. Nothing may be open any more: turning autocommit on commits.
const END_TRANSACTION: &str = "set autocommit = @oncebox_autocommit, max_statement_time = @oncebox_statement, \
     idle_transaction_timeout = @oncebox_idle, innodb_lock_wait_timeout = @oncebox_lock, \
     lock_wait_timeout = @oncebox_table";

/// Fails unless the transaction is the one that was begun with this marker and has not been undone by a deadlock; the
/// commit behind it is not run then.
pub(crate) fn commit_transaction(marker: u64) -> String {
    format!("xa end {0}; xa commit {0} one phase; {END_TRANSACTION}", name(marker))
}

/// What must come before [`roll_back_transaction`]; an error of it means that a deadlock or the handler came before.
pub(crate) fn end_transaction(marker: u64) -> String {
    format!("xa end {}", name(marker))
}

pub(crate) fn roll_back_transaction(marker: u64) -> String {
    format!("xa rollback {}; {END_TRANSACTION}", name(marker))
}

/// The names of XA transactions must differ on the whole server.
fn name(marker: u64) -> String {
    format!("'oncebox-{marker:016x}'")
}

/// Ends a session. The numbers of sessions are never given twice.
pub(crate) fn kill(session: u64) -> String {
    format!("kill connection {session}")
}

/// Takes the next numbers, whose last one is the "last insert id", and asks for the time once the row is locked.
pub(crate) fn next_numbers(schema: &Schema, count: usize, shift: i64) -> String {
    format!(
        "update {}.head set seq = last_insert_id(seq + {count}) where one = 1; select {}",
        schema.quoted(),
        now(shift)
    )
}

/// The error number with which [`move_lanes`] says that a lane is no longer ours.
pub(crate) const LANE_LOST: u16 = 31_001;

/// Moves the cursors, and fails with [`LANE_LOST`] unless every one of them carries the token.
pub(crate) fn move_lanes(schema: &Schema, lanes: &MoveLanes, shift: i64) -> String {
    let schema = schema.quoted();
    let mut cases = String::new();
    let mut numbers = Vec::new();
    for (lane, position) in &lanes.positions {
        let _ = write!(cases, " when {lane} then {position}");
        numbers.push(lane.to_string());
    }
    let (now, token, count) = (now(shift), lanes.token.0, lanes.positions.len());
    let free = if lanes.keep { "" } else { ", token = null" };
    format!(
        "update {schema}.cursor set position = case lane{cases} else position end, started_at = {now}{free} \
         where handler = {} and token = {token} and lane in ({}); \
         begin not atomic if row_count() <> {count} then \
         signal sqlstate '45000' set mysql_errno = {LANE_LOST}, message_text = 'oncebox: a lane was lost'; \
         end if; end",
        bytes(lanes.handler.as_bytes()),
        numbers.join(",")
    )
}

/// Locks up to so many of the lanes that carry no fresh mark, skipping locked ones.
pub(crate) fn lock_free_lanes(schema: &Schema, handler: &str, lanes: &[u16], age: i64, shift: i64) -> String {
    format!(
        "select lane, case when token is not null then suspects end from {}.cursor \
         where handler = {} and lane in ({}) and (token is null or started_at <= {} - {age}) \
         order by started_at, lane for update skip locked",
        schema.quoted(),
        bytes(handler.as_bytes()),
        list(lanes),
        now(shift)
    )
}

/// Marks lanes that are locked by this transaction.
pub(crate) fn mark_lanes(
    schema: &Schema,
    handler: &str,
    lanes: &[u16],
    token: i64,
    suspects: usize,
    shift: i64,
) -> String {
    format!(
        "update {}.cursor set token = {token}, started_at = {}, suspects = {} where handler = {} and lane in ({})",
        schema.quoted(),
        now(shift),
        suspects.min(i32::MAX as usize),
        bytes(handler.as_bytes()),
        list(lanes)
    )
}

/// Locks the claimed lanes that are still ours, and reads their next messages, lane after lane.
///
/// Only positions are put together from several lanes; the messages themselves come straight from the log.
pub(crate) fn read_lanes(schema: &Schema, read: &ReadLanes<'_>, shift: i64) -> String {
    let schema = schema.quoted();
    let handler = bytes(read.handler.as_bytes());
    let (limit, token) = (read.limit, read.token.0);
    let lanes: Vec<u16> = read.lanes.iter().map(|bound| bound.lane).collect();
    let parts: Vec<String> = read
        .lanes
        .iter()
        .map(|bound| {
            let upto = bound.upto.unwrap_or(i64::MAX);
            format!(
                "(select lane, seq from {schema}.log where lane = {lane} and seq > (select position from \
                 {schema}.cursor where handler = {handler} and lane = {lane}) and seq <= {upto} \
                 order by seq limit {limit})",
                lane = bound.lane
            )
        })
        .collect();
    let wanted = wanted(read.kinds);
    let held = if read.ordered {
        format!(
            "(l.`key` is not null and {wanted} and exists (select 1 from {schema}.delivery d \
             where d.handler = {handler} and d.`key` = l.`key` and d.state in (0, 1)))"
        )
    } else {
        "false".to_owned()
    };
    let now = now(shift);
    let field = |name: &str| format!("case when {wanted} then l.{name} end");
    format!(
        "select lane, connection_id() from {schema}.cursor \
         where handler = {handler} and token = {token} and lane in ({}) for update skip locked; \
         select l.lane, l.seq, {wanted}, coalesce(l.not_before > {now}, false), {held}, \
         {}, {}, {}, {}, {}, {}, l.not_before \
         from ({} limit {limit}) n straight_join {schema}.log l force index (primary) \
         on l.lane = n.lane and l.seq = n.seq",
        list(&lanes),
        field("scope"),
        field("id"),
        field("kind"),
        field("`key`"),
        field("headers"),
        field("payload"),
        parts.join(" union all ")
    )
}

fn wanted(kinds: &Kinds) -> String {
    if kinds.prefixes.iter().any(String::is_empty) {
        return "true".to_owned();
    }
    let mut tests = vec!["false".to_owned()];
    if !kinds.exact.is_empty() {
        let exact: Vec<String> = kinds.exact.iter().map(|kind| bytes(kind.as_bytes())).collect();
        tests.push(format!("l.kind in ({})", exact.join(",")));
    }
    for prefix in &kinds.prefixes {
        tests.push(format!("left(l.kind, {}) = {}", prefix.len(), bytes(prefix.as_bytes())));
    }
    format!("({})", tests.join(" or "))
}

/// Where a handler stands in one lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    pub(crate) lane: u16,
    pub(crate) position: i64,
}

/// Counts, within bounds, what waits for one handler: its rows by state, then each lane.
pub(crate) fn count_waiting(
    schema: &Schema,
    handler: &str,
    standing: &[Standing],
    [most_waiting, most_counted]: [i64; 2],
    shift: i64,
) -> String {
    let schema = schema.quoted();
    let handler = bytes(handler.as_bytes());
    let state = |condition: &str| {
        format!(
            "(select count(*) from (select 1 from {schema}.delivery where handler = {handler} and {condition} \
             limit {most_counted}) n)"
        )
    };
    let mut text = format!(
        "select {}, {}, {}, {}",
        state("state = 0 and last_error is not null"),
        state("state = 1"),
        state("state = 2"),
        state("state = 3")
    );
    let now = now(shift);
    for Standing { lane, position } in standing {
        let rows = format!("from {schema}.log where lane = {lane} and seq > {position}");
        let _ = write!(
            text,
            "; select (select count(*) from (select 1 {rows} limit {most_waiting}) n), \
             {now} - (select received_at {rows} order by seq limit 1)"
        );
    }
    text
}

/// The last message up to this place: the last of each lane, and of those the last.
pub(crate) fn search_last(schema: &Schema, upto: i64) -> String {
    let schema = schema.quoted();
    let parts: Vec<String> = (0..LANES)
        .map(|lane| {
            format!(
                "(select seq, received_at from {schema}.log where lane = {lane} and seq <= {upto} \
                 order by seq desc limit 1)"
            )
        })
        .collect();
    format!("{} order by seq desc limit 1", parts.join(" union all "))
}

/// Bytes as a literal.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(3 + 2 * bytes.len());
    text.push_str("x'");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\'');
    text
}

fn list(lanes: &[u16]) -> String {
    let lanes: Vec<String> = lanes.iter().map(u16::to_string).collect();
    lanes.join(",")
}

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// Every statement of the store.
        #[derive(Debug)]
        pub(crate) struct Sql {
            pub(crate) insert_seen: Insert,
            pub(crate) insert_inline: Insert,
            pub(crate) insert_log: Insert,
            pub(crate) insert_outbox: Insert,
            pub(crate) insert_delivery: Insert,
            pub(crate) insert_attempt: Insert,
            pub(crate) insert_conflict: Insert,
            pub(crate) add_counts: Insert,
            $(pub(crate) $name: Statement,)*
        }

        impl Sql {
            pub(crate) fn render(schema: &Schema) -> Self {
                let insert = |text, row| Insert::new(text, row, schema);
                Self {
                    insert_seen: insert(include_str!("sql/insert_seen.sql"), "(?,?,?,?,?)"),
                    insert_inline: insert(include_str!("sql/insert_inline.sql"), "(?,?,{now},?)"),
                    insert_log: insert(include_str!("sql/insert_log.sql"), "(?,?,?,?,?,?,?,?,?,?,?)"),
                    insert_outbox: insert(
                        include_str!("sql/insert_outbox.sql"),
                        "(?,?,?,?,?,?,?,?,?,greatest(coalesce(?,0),{now}),{now})",
                    ),
                    insert_delivery: insert(
                        include_str!("sql/insert_delivery.sql"),
                        "(?,?,?,?,?,?,?,?,?,coalesce(?,{now}),?,?,coalesce(?,{now}+?),?,?)",
                    ),
                    insert_attempt: insert(include_str!("sql/insert_attempt.sql"), "(?,?,?,{now},?)"),
                    insert_conflict: insert(
                        include_str!("sql/insert_conflict.sql"),
                        "(?,?,?,?,?,?,?,?,?,{now})",
                    ),
                    add_counts: insert(
                        include_str!("sql/add_counts.sql"),
                        "(?,?,case when ? then {now} div 60000000 else 0 end,?)",
                    ),
                    $($name: Statement::render(
                        include_str!(concat!("sql/", stringify!($name), ".sql")),
                        schema,
                    ),)*
                }
            }
        }
    };
}

statements! {
    add_audit, add_token, attempts_of, audit, begin_response, cancel_replay, catalog, claim_response, clock,
    conflict_page, conflicts, conflicts_of, count_conflicts, count_deliveries, count_purgeable, counts, cursors, delete_done, delete_outgoing,
    delete_tally, deliveries, deliveries_of, discard, engines, expired_responses, find_message, fold_tally,
    foreign_engines, forget_counter, forget_cursors, forget_deliveries, forget_handler, free_lanes, handlers,
    held_keys, history, insert_response, known, known_handlers, lease, lease_due, lease_peek, list_replays, listen,
    lock_claim, lock_cursors, lock_leases, lock_relay, lock_replay, lock_response, matching, migration_applied,
    migration_table, migrations, move_replay, note_discarded, old_transactions, once, orphans, outbox_lanes,
    outbox_sinks, outbox_status, outgoing, overdue, paused_sources, promote, purge_attempt, purge_conflict, purge_counter,
    purge_delivery, purge_log, purge_log_lanes, purge_log_window, purge_responses, purge_seen, read_outgoing,
    read_replay, read_response, register, register_cursors, relay_rows, release, release_held, release_relay,
    release_response, remove_token, rename_attempt, rename_counter, rename_cursor, rename_delivery, rename_handler,
    renew, renew_response, replay, replay_outgoing, search_places, search_read, search_seen, set_paused,
    set_source_paused, settings, settle, settle_outgoing, settle_response, standing, start_replay, still_ours,
    sweep_attempt, sweep_delivery, sweep_lock, sweep_move, sweep_seen, take_relay, take_tally, timeouts, tokens,
    wanted_kinds,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_lower_case_names_become_a_schema() {
        for good in ["oncebox", "_x", "a1", &"a".repeat(41)] {
            assert_eq!(Schema::new(good).unwrap().quoted(), format!("`{good}`"));
        }
        for bad in ["", "1a", "A", "a-b", "a b", "a`b", "a;drop", "ä", &"a".repeat(42)] {
            assert!(Schema::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pieces_cover_all_rows_in_order_and_stay_below_the_packet() {
        let schema = Schema::new("x").unwrap();
        let insert = Insert::new("-- a.sql: locks nothing\nvalues {rows}", "(?)", &schema);
        let rows: Vec<usize> = (0..1603).collect();
        let sizes: Vec<usize> = insert.pieces(&rows, 0, 5000, |_| 1).map(|(_, piece)| piece.len()).collect();
        assert_eq!(sizes, [1000, 500, 100, 3]);
        for bytes in [1, 2, 2500, 9000] {
            let pieces: Vec<&[usize]> =
                insert.pieces(&rows, 0, 5000, move |_| bytes).map(|(_, piece)| piece).collect();
            assert_eq!(pieces.concat(), rows);
            assert!(pieces.iter().all(|piece| piece.len() * bytes <= 5000 || piece.len() == 1), "{bytes}");
        }
        assert_eq!(&*insert.pieces(&[1, 2], 7, 5000, |_| 1).next().unwrap().0, "values (?),(?)");
    }

    #[test]
    fn values_in_a_text_are_numbers_or_hexadecimal_bytes() {
        assert_eq!(bytes(b"a'\\\0\xff"), "x'61275c00ff'");
        assert_eq!(bytes(b""), "x''");
    }

    #[test]
    fn the_shift_of_the_clock_is_a_number_in_the_text() {
        let schema = Schema::new("x").unwrap();
        let statement = Statement::render("-- a.sql: locks nothing\nselect {now} from {schema}.a", &schema);
        assert!(statement.text(0).ends_with("+ 0) from `x`.a"));
        assert!(statement.text(-5).ends_with("+ -5) from `x`.a"));
    }
}
