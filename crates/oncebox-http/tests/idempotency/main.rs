//! The layer over real sockets, on every store: what is answered, what is kept, who races, who dies.

// Part of tests, which clippy sees only in functions marked as such.
#![allow(clippy::unwrap_used)]

mod app;
mod client;
mod deaths;
mod failing;
mod keys;
mod races;
mod settings;
mod storing;

#[path = "../../../oncebox-mariadb/tests/support/mod.rs"]
#[allow(dead_code)]
mod mariadb_support;
#[path = "../../../oncebox-postgres/tests/support/mod.rs"]
#[allow(dead_code)]
mod postgres_support;
#[path = "../../../oncebox-sqlite/tests/support/mod.rs"]
#[allow(dead_code)]
mod sqlite_support;

macro_rules! on_every_store {
    ($($module:ident: $($case:ident),* $(,)?;)*) => {
        on_every_store! { @store sqlite, crate::sqlite_support::SqliteSubject, $($module: $($case),*;)* }
        on_every_store! { @store postgres, crate::postgres_support::PgSubject, $($module: $($case),*;)* }
        on_every_store! { @store mariadb, crate::mariadb_support::MariaSubject, $($module: $($case),*;)* }
    };
    (@store $store:ident, $subject:ty, $($module:ident: $($case:ident),*;)*) => {
        mod $store {
            $(mod $module {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        let Some(subject) = <$subject as oncebox_testkit::Subject>::create().await else { return };
                        oncebox_testkit::within_deadline(crate::$module::$case(subject)).await;
                    }
                )*
            })*

            /// What a child process does; in the parent process it has nothing to do.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn child() {
                crate::deaths::serve_until_killed::<$subject>().await;
            }
        }
    };
}

on_every_store! {
    keys:
        the_first_request_runs_and_its_copies_get_its_response,
        a_missing_key_is_refused_where_it_is_required,
        a_missing_key_runs_where_it_is_not_required,
        two_keys_are_refused,
        what_is_no_string_is_refused,
        a_bare_key_is_read_where_it_is_allowed,
        other_content_is_refused,
        a_request_in_flight_is_a_conflict_at_once,
        a_key_belongs_to_its_caller,
        a_key_belongs_to_its_route_and_method,
        callers_can_be_told_apart_by_the_application;
    storing:
        a_replay_has_status_headers_and_body_but_no_secrets,
        a_refusal_is_stored_and_its_work_undone,
        not_now_is_not_stored,
        a_failure_is_undone_and_the_next_request_runs,
        a_panic_is_undone_and_the_next_request_runs,
        a_handler_without_a_transaction_runs_once_while_all_goes_well,
        a_long_call_without_a_transaction_keeps_its_key,
        a_request_publishes_what_it_commits;
    failing:
        a_client_that_goes_away_leaves_nothing_behind,
        a_swallowed_sql_error_is_no_success,
        an_error_at_commit_is_no_success,
        a_handler_that_ends_its_transaction_has_failed,
        a_handler_that_keeps_its_transaction_has_failed,
        a_commit_whose_outcome_is_unknown_is_looked_up,
        a_commit_that_failed_is_undone,
        a_store_that_is_away_is_told,
        a_response_that_cannot_be_written_at_once_is_written_later;
    races:
        fifty_copies_at_once_have_one_effect,
        fifty_copies_that_wait_all_get_the_response,
        who_has_lost_its_key_answers_nothing,
        one_connection_is_enough;
    settings:
        a_body_over_the_limit_is_refused,
        a_response_over_the_limit_is_undone,
        a_key_is_forgotten_when_its_time_is_over,
        expired_responses_are_removed_by_later_requests,
        scopes_are_set_apart;
    deaths:
        kill_9_anywhere_leaves_one_effect_for_each_key,
        kill_9_without_a_transaction_frees_the_key_after_its_lease;
}
