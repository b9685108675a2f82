//! The SQL of this store: one file per statement in `sql/`, with the prefix of its tables filled in once.
//!
//! `{now}` is the database's clock in microseconds (SQLite knows milliseconds) plus the store's shift, which is
//! always parameter `?1` of such a statement.
//!
//! A limit is written `?4 + 0`: SQLite plans with the value of a bare parameter, and so prepares the whole statement anew
//! each time one is bound, which takes longer than most of them run.

use std::sync::Arc;

use oncebox_core::Error;
use sqlx::{AssertSqlSafe, Sqlite};

use crate::tx::writer::SqliteQuery;

pub(crate) const DEFAULT_PREFIX: &str = "oncebox_";

const NOW: &str = "(cast(round(unixepoch('subsec') * 1000.0) as integer) * 1000 + ?1)";

/// What tells whether there is a schema at all, and which.
pub(crate) const TABLE_EXISTS: &str = "select 1 from sqlite_schema where type = 'table' and name = ?1";
pub(crate) const CATALOG: &str =
    "select tbl_name, type || ' `' || name || '`', coalesce(sql, '') from sqlite_schema order by 2";
const APPLIED: &str = "select version, checksum, applied_at from {prefix}migration order by version";
const MIGRATION_TABLE: &str = "create table if not exists {prefix}migration (
    version integer not null primary key,
    name text not null,
    checksum text not null,
    applied_at integer not null
) strict;
";

/// The migrations that were applied.
pub(crate) fn applied_migrations(prefix: &str) -> String {
    render(APPLIED, prefix)
}

/// A migration as a script without parameters, with the row that says it was applied.
pub(crate) fn migration_script(prefix: &str, text: &str, row: (i64, &str, &str), shift: i64) -> String {
    let (version, name, checksum) = row;
    let row = format!(
        "\ninsert into {{prefix}}migration (version, name, checksum, applied_at)\n\
         values ({version}, '{name}', '{checksum}', {{now}});\n"
    );
    // A script has no parameters, so the shift is written out.
    render(&format!("{MIGRATION_TABLE}{text}{row}"), prefix).replace("?1", &shift.to_string()) + "\n"
}

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// The statements for one prefix.
        #[derive(Debug)]
        pub(crate) struct Sql {
            pub(crate) prefix: String,
            pub(crate) receive_few: Whole,
            pub(crate) seen: Insert,
            pub(crate) seen_inline: Insert,
            pub(crate) log: Insert,
            pub(crate) outbox: Insert,
            pub(crate) delivery: Insert,
            $(pub(crate) $name: Arc<str>,)*
        }

        impl Sql {
            /// Refuses a prefix that is not a plain lower-case identifier.
            pub(crate) fn new(prefix: &str) -> Result<Self, Error> {
                check_prefix(prefix)?;
                let insert = |text, columns| Insert::new(&render(text, prefix), columns);
                Ok(Self {
                    prefix: prefix.to_owned(),
                    receive_few: Whole::new(&render(include_str!("sql/receive_few.sql"), prefix)),
                    seen: insert(include_str!("sql/insert_seen.sql"), 5),
                    seen_inline: insert(include_str!("sql/insert_seen_inline.sql"), 3),
                    log: insert(include_str!("sql/insert_log.sql"), 9),
                    outbox: insert(include_str!("sql/insert_outbox.sql"), 11),
                    delivery: insert(include_str!("sql/insert_delivery.sql"), 15),
                    $($name: render(include_str!(concat!("sql/", stringify!($name), ".sql")), prefix).into(),)*
                })
            }
        }
    };
}

statements!(
    overdue,
    search_places,
    search_last,
    search_read,
    search_seen,
    find_message,
    standing,
    deliveries_of,
    attempts_of,
    conflicts_of,
    conflict_page,
    count_conflicts,
    outgoing,
    start_replay,
    read_replay,
    list_replays,
    move_replay,
    cancel_replay,
    add_audit,
    add_token,
    audit,
    count_deliveries,
    count_purgeable,
    paused_sources,
    remove_token,
    set_source_paused,
    tokens,
    add_counts,
    begin_lanes,
    begin_response,
    claim,
    claim_response,
    clock,
    conflicts,
    counts,
    deliveries,
    delete_done,
    discard,
    discard_history,
    due_outgoing,
    forget_cursors,
    forget_deliveries,
    forget_handler,
    handlers,
    held_keys,
    insert_attempt,
    insert_conflict,
    insert_once,
    known,
    lapsed_history,
    lease,
    lease_candidates,
    lease_relay,
    lease_peek,
    move_lanes,
    next_seqs,
    outbox_status,
    peek_outgoing,
    promote,
    promote_stuck,
    purge_attempts,
    purge_attempts_window,
    purge_conflicts,
    purge_counters,
    purge_discarded,
    purge_log,
    purge_log_lanes,
    purge_responses,
    purge_seen,
    purge_seen_window,
    read_lanes,
    read_response,
    register,
    register_cursors,
    registered,
    release,
    release_held,
    release_relay,
    release_response,
    rename_attempt,
    rename_counter,
    rename_cursor,
    rename_delivery,
    rename_handler,
    renew,
    renew_response,
    replay,
    replay_candidates,
    replay_outgoing,
    set_paused,
    touch,
    wanted_kinds,
    settle,
    settle_history,
    settle_outgoing,
    settle_response,
    history,
    verify_leases,
    delete_outgoing,
);

/// A query with this text; its parameters are bound by the caller.
pub(crate) fn query<'a>(text: &Arc<str>) -> SqliteQuery<'a> {
    sqlx::query::<Sqlite>(AssertSqlSafe(text.clone()))
}

/// An insert of many rows, in a few fixed sizes so that SQLite's prepared statements are used again.
#[derive(Debug)]
pub(crate) struct Insert {
    sizes: Vec<(usize, Arc<str>)>,
}

/// How many rows one statement inserts: a few sizes, so that prepared statements are found again. Each statement is a
/// trip to the thread of its connection and back: any number below 64 takes at most six of them, and a full group of 1,000
/// four.
const SIZES: [usize; 9] = [250, 128, 64, 32, 16, 8, 4, 2, 1];

impl Insert {
    fn new(text: &str, columns: usize) -> Self {
        // Parameters without numbers: the driver looks up the name of each numbered one.
        let row = format!("({})", vec!["?"; columns].join(","));
        let sizes = SIZES.iter().map(|size| {
            let rows = vec![row.as_str(); *size].join(",");
            (*size, Arc::from(text.replace("{rows}", &rows)))
        });
        Self { sizes: sizes.collect() }
    }

    /// Cuts `rows` into pieces and gives the statement for each.
    pub(crate) fn pieces<'a, T>(
        &'a self,
        mut rows: &'a [T],
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a [T])> {
        std::iter::from_fn(move || {
            let (size, text) = self.sizes.iter().find(|(size, _)| *size <= rows.len())?;
            let (piece, rest) = rows.split_at(*size);
            rows = rest;
            Some((text, piece))
        })
    }
}

/// A whole receive, in the same sizes.
#[derive(Debug)]
pub(crate) struct Whole {
    sizes: Vec<(usize, Arc<str>)>,
}

impl Whole {
    /// How many values a row of `seen` and one of the log have.
    pub(crate) const COLUMNS: (usize, usize) = (4, 10);

    fn new(text: &str) -> Self {
        let rows = |size: usize, columns: usize| {
            let row = format!("({})", vec!["?"; columns].join(","));
            vec![row.as_str(); size].join(",")
        };
        // Here every parameter goes without a number, the clock's shift too: each comes after the one before it.
        let text = text.replace("?1", "?");
        let sizes = SIZES.iter().rev().map(|size| {
            let (seen, log) = Self::COLUMNS;
            let text = text.replace("{seen}", &rows(*size, seen)).replace("{log}", &rows(*size, log));
            (*size, Arc::from(text))
        });
        Self { sizes: sizes.collect() }
    }

    /// The statements for so many rows, and the size they have room for; `None` when that is too many.
    pub(crate) fn fitting(&self, rows: usize) -> Option<(usize, &Arc<str>)> {
        self.sizes.iter().find(|(size, _)| *size >= rows).map(|(size, text)| (*size, text))
    }
}

/// Fills the prefix and the clock into a statement.
pub(crate) fn render(text: &str, prefix: &str) -> String {
    text.replace("{prefix}", prefix).replace("{now}", NOW).trim_end().to_owned()
}

pub(crate) fn check_prefix(prefix: &str) -> Result<(), Error> {
    let mut bytes = prefix.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let rest = bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    // Names that begin with `sqlite_` are SQLite's own.
    if first && rest && prefix.len() <= 41 && !prefix.starts_with("sqlite_") {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "table prefix `{}` is not allowed; use a-z, 0-9 and _, at most 41 bytes, not beginning with a digit or `sqlite_`",
        prefix.escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_identifiers_are_prefixes() {
        for right in ["oncebox_", "_", "a1_", &"x".repeat(41)] {
            check_prefix(right).unwrap();
        }
        for wrong in ["", "1a", "A", "a-b", "a\"", "a;drop", "sqlite_x", "é", &"x".repeat(42)] {
            assert!(check_prefix(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_limit_is_a_bare_parameter() {
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql")).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            for after in text.split("limit ?").skip(1) {
                let after = after.trim_start_matches(|char: char| char.is_ascii_digit());
                assert!(after.starts_with(" + 0"), "{}: see the top of sql.rs", path.display());
            }
        }
    }

    #[test]
    fn pieces_cover_all_rows_in_order() {
        let insert = Insert::new("values {rows}", 2);
        let rows: Vec<usize> = (0..603).collect();
        let sizes: Vec<usize> = insert.pieces(&rows).map(|(_, piece)| piece.len()).collect();
        assert_eq!(sizes, [250, 250, 64, 32, 4, 2, 1]);
        let all: Vec<usize> = insert.pieces(&rows).flat_map(|(_, piece)| piece.to_vec()).collect();
        assert_eq!(all, rows);
    }
}
