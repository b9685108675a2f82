//! The statements, each from a file of its own, with the schema's name filled in once.

use std::sync::Arc;

use oncebox_core::Error;
use oncebox_core::store::TxLimits;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Arguments, AssertSqlSafe, Postgres};

/// A statement with the schema's name in it. Values only ever go in as bound parameters.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    text: Arc<str>,
    prepared: Prepared,
}

/// Whether a session may keep a statement under a name to use it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prepared {
    Kept,
    /// A pooler may give the next statement to a session that has never heard of it.
    EachTime,
}

impl Statement {
    /// A statement that is seldom run.
    pub(crate) fn render(text: &str, schema: &Schema) -> Self {
        Self::with(text, schema, Prepared::EachTime)
    }

    fn with(text: &str, schema: &Schema, prepared: Prepared) -> Self {
        Self { text: text.replace("{schema}", &schema.quoted()).into(), prepared }
    }

    /// The statement, ready for its parameters.
    pub(crate) fn query<'q>(&self) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(AssertSqlSafe(self.text.clone())).persistent(self.prepared == Prepared::Kept)
    }

    /// The same, with room for parameters of this many bytes.
    pub(crate) fn query_with_room<'q>(&self, bytes: usize) -> Query<'q, Postgres, PgArguments> {
        let mut arguments = PgArguments::default();
        arguments.reserve(0, bytes);
        sqlx::query_with(AssertSqlSafe(self.text.clone()), arguments)
            .persistent(self.prepared == Prepared::Kept)
    }

    /// The statement's text, to be run without parameters.
    pub(crate) fn text(&self) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(self.text.clone())
    }
}

/// A checked schema name.
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
        format!("\"{}\"", self.0)
    }
}

/// What makes the schema itself, before there is a table to ask.
pub(crate) const CREATE_SCHEMA: &str = "create schema if not exists {schema}";
pub(crate) const SCHEMA_EXISTS: &str = "select to_regnamespace('{schema}') is not null";

/// Notes a migration as applied, in a script without parameters.
pub(crate) fn migration_row(schema: &Schema, version: i32, name: &str, checksum: &str) -> String {
    format!(
        "insert into {}.migration (version, name, checksum, applied_at)\n\
         values ({version}, '{name}', '{checksum}', (extract(epoch from clock_timestamp()) * 1000000)::bigint);\n",
        schema.quoted()
    )
}

/// Begins a handler's transaction, with its limits, its mark and its guard, in one round trip.
///
/// The guard is what refuses a commit that is not ours: a cursor that is to outlive the transaction, whose query fails.
/// Postgres runs that query only when it commits, so a `commit` of the handler's own (also `commit and chain` and
/// `prepare transaction`) is an error and undoes everything: neither the work of others in the same transaction nor the
/// ids it has seen are kept without their done marks. [`check_and_commit`] closes the cursor first. It costs one small
/// statement for each transaction, writes nothing, and leaves nothing in the session.
///
/// The query asks for the time so that the planner does not try it out beforehand.
pub(crate) fn begin_transaction(limits: TxLimits, marker: &str) -> String {
    // Zero would mean no limit at all.
    let most = limits.statement.as_millis().clamp(1, i32::MAX as u128);
    format!(
        "begin isolation level read committed; set local oncebox.tx = '{marker}'; \
         set local statement_timeout = {most}; set local lock_timeout = {most}; \
         set local idle_in_transaction_session_timeout = {most}; \
         declare {} no scroll cursor with hold for select (case when clock_timestamp() is not null then \
         'this transaction belongs to oncebox: return from the handler instead of ending it' end)::integer",
        guard(marker)
    )
}

/// Commits the transaction that was begun with this marker.
///
/// Closing the guard fails in a transaction that is aborted (25P02), in any other one and in none (34000); the commit
/// behind it is not run then.
pub(crate) fn check_and_commit(marker: &str) -> String {
    format!("{}; commit and chain", close_guard(marker))
}

pub(crate) fn close_guard(marker: &str) -> String {
    format!("close {}", guard(marker))
}

fn guard(marker: &str) -> String {
    format!("\"oncebox {marker}\"")
}

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// Every statement of the store.
        #[derive(Debug)]
        pub(crate) struct Sql {
            $(pub(crate) $name: Statement,)*
        }

        impl Sql {
            pub(crate) fn render(schema: &Schema, prepared: Prepared) -> Self {
                Self {
                    $($name: Statement::with(
                        include_str!(concat!("sql/", stringify!($name), ".sql")),
                        schema,
                        prepared,
                    ),)*
                }
            }
        }
    };
}

statements! {
    add_audit, add_counts, add_token, announce, attempts_of, audit, begin_inline, begin_leased, begin_plain,
    begin_response, cancel_replay, catalog, claim, claim_response, clock, commit_done, commit_lanes, conflict,
    conflict_page, conflicts, conflicts_of, count_conflicts, count_deliveries, count_purgeable, counts, deliveries, deliveries_of, discard, examine,
    find_message, fold_tally, forget, handlers, heal, history, idle_slots, known, known_handlers, lease,
    lease_outgoing, list_replays, lock_cursors, lock_lanes, lock_replay, matching, migration_applied,
    migration_lock, migration_table, migrations, move_replay, no_jit, old_transactions, once, outbox_status, outgoing,
    overdue, park, paused_sources, promote, publish, purge_attempt, purge_conflict, purge_counter, purge_delivery,
    purge_log, purge_responses, purge_seen, read_lanes, read_outgoing, read_outgoing_start, read_replay, receive, receive_new, register,
    register_cursors, relay_rows, release, release_held, release_response, remove_outgoing, remove_token, rename,
    renew, renew_response, replay, replay_outgoing, revoke, search_last, search_places, search_read, search_seen,
    set_paused, set_source_paused, settings, settle, settle_outgoing, settle_response, standing, start_replay,
    sweep_lock, sweep_move, table_health, tokens, wanted_kinds,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_lower_case_names_become_a_schema() {
        for good in ["oncebox", "_x", "a1", &"a".repeat(41)] {
            assert_eq!(Schema::new(good).unwrap().quoted(), format!("\"{good}\""));
        }
        for bad in ["", "1a", "A", "a-b", "a b", "a\"b", "a;drop", "ä", &"a".repeat(42)] {
            assert!(Schema::new(bad).is_err(), "{bad}");
        }
    }
}
