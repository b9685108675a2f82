//! What every store must do, case by case. The names are the rules.
//!
//! Each case is an `async fn` that takes a fresh [`Subject`](crate::Subject). To add one, write it in the file of its
//! topic and add its name to the list in [`store_suite!`](crate::store_suite!); a test here fails when it is missing.

pub mod batches;
pub mod claims;
pub mod dead_letters;
pub mod examining;
pub mod failing;
pub mod handlers;
pub mod identity;
pub mod inline;
pub mod leasing;
pub mod limits;
pub mod looking;
pub mod operating;
pub mod ordering;
pub mod outbox;
pub mod outside;
pub mod own_transaction;
pub mod pausing;
pub mod payloads;
pub mod receiving;
pub mod relaying;
pub mod replaying;
pub mod responses;
pub mod retention;
pub mod retrying;
pub mod running;
pub mod scheduling;
pub mod searching;
pub mod stopping;
pub mod taking;
pub mod telemetry;

/// Runs every case of the store suite as a test of its own: `store_suite!(MySubject);`.
#[macro_export]
macro_rules! store_suite {
    ($subject:ty) => {
        $crate::cases! { $subject, store_suite, receiving:
            a_new_message_is_stored_and_a_copy_is_a_duplicate,
            no_messages_get_no_answers,
            copies_in_one_call_are_one_message,
            every_message_of_a_long_call_gets_its_own_answer,
            copies_received_at_the_same_time_are_one_message,
            a_call_that_the_store_refuses_harms_none_beside_it,
            a_refused_copy_with_other_bytes_harms_no_call_but_its_own,
            calls_that_were_given_up_while_they_waited_are_not_stored,
            batches_in_opposite_order_do_not_deadlock,
            a_known_id_with_other_bytes_is_a_conflict_that_is_kept,
            a_conflict_within_one_call_is_told_from_a_copy,
            what_was_received_is_there_for_the_next_process,
        }
        $crate::cases! { $subject, store_suite, identity:
            the_same_id_in_two_scopes_is_two_messages,
            scope_and_id_do_not_run_together,
            ids_are_compared_byte_by_byte,
            ids_that_look_like_numbers_are_texts,
            an_empty_id_is_refused,
            the_longest_ids_and_keys_are_told_apart_by_their_last_byte,
            a_row_the_database_cannot_hold_is_never_ignored,
            only_the_message_id_decides_what_is_a_duplicate,
            a_handler_sees_scope_id_kind_and_key_as_they_came,
        }
        $crate::cases! { $subject, store_suite, payloads:
            payload_bytes_come_out_as_they_went_in,
            dead_letters_and_conflicts_keep_their_bytes,
            outgoing_bytes_are_sent_as_they_were_published,
            headers_come_out_as_they_went_in,
            a_payload_that_cannot_be_read_is_dead_at_once,
            a_row_that_cannot_be_read_is_a_dead_letter_and_its_lane_goes_on,
            a_payload_over_the_limit_is_refused_and_one_at_the_limit_is_not,
        }
        $crate::cases! { $subject, store_suite, handlers:
            arguments_come_in_any_order,
            an_argument_may_be_made_of_others,
            handlers_beside_each_other_get_the_same_messages,
            a_batch_handler_gets_many_messages_in_one_call,
            each_handler_of_a_message_is_remembered_on_its_own,
            a_handler_gets_the_kinds_it_asked_for,
            a_handler_added_later_starts_at_the_end,
            a_handler_added_from_the_start_gets_the_whole_log,
            a_renamed_handler_goes_on_where_it_was,
            a_kind_nobody_wants_is_stored_and_counted,
            registering_from_many_processes_at_once_is_safe,
            a_forgotten_handler_leaves_nothing,
            the_status_of_a_handler_says_what_waits,
        }
        $crate::cases! { $subject, store_suite, failing:
            an_error_leaves_nothing_behind_and_the_message_runs_again,
            a_panic_is_a_failure_like_any_other,
            a_timeout_is_a_failure_that_frees_the_locks,
            a_statement_that_began_late_is_ended_with_its_handler,
            a_handler_that_never_returns_is_stopped_by_its_timeout,
            a_permanent_failure_is_dead_at_once,
            a_failure_can_choose_when_to_come_again,
            a_swallowed_sql_error_never_loses_the_effect,
            a_handler_that_ends_its_transaction_has_failed,
            an_error_at_commit_is_a_failure,
            a_handler_that_keeps_its_transaction_has_failed,
            any_error_text_is_kept,
        }
        $crate::cases! { $subject, store_suite, batches:
            a_failing_message_leaves_its_neighbours_unharmed,
            a_message_that_spoils_the_commit_is_found,
            a_message_that_ends_the_transaction_is_found,
            a_message_that_commits_the_transaction_doubles_nothing,
            a_message_that_hides_the_end_of_the_transaction_loses_nothing,
            a_batch_with_a_bad_message_is_split_until_it_is_alone,
            a_failing_message_among_rows_of_their_own_leaves_the_others_unharmed,
            a_long_lane_is_run_batch_by_batch,
            a_slow_batch_is_committed_in_pieces,
        }
        $crate::cases! { $subject, store_suite, retrying:
            the_wait_between_attempts_grows_by_the_database_clock,
            the_clock_of_the_client_does_not_matter,
            a_wait_begins_when_it_is_written,
            attempts_are_counted_from_one,
            an_attempt_that_died_with_its_process_counts,
            a_delivery_whose_last_attempt_died_is_dead,
            a_begun_transaction_that_is_dropped_leaves_nothing_open,
        }
        $crate::cases! { $subject, store_suite, leasing:
            an_expired_lease_is_taken_over_and_cannot_settle,
            a_paused_handler_gets_no_lease,
            leased_work_commits_with_its_transaction_or_is_fenced,
            the_next_held_message_of_a_key_becomes_ready_when_the_one_before_ends,
            held_messages_left_with_nothing_before_them_are_healed,
            a_scheduled_message_waits_for_its_time_and_behind_earlier_ones_of_its_key,
            a_replay_keeps_the_order_of_each_key,
            deliveries_are_found_by_every_filter,
            no_delivery_is_leased_twice_by_rivals,
            counters_add_up,
        }
        $crate::cases! { $subject, store_suite, dead_letters:
            after_its_last_attempt_a_delivery_is_dead_with_all_it_came_with,
            a_replayed_dead_letter_runs_again_from_the_first_attempt,
            a_replay_that_fails_again_is_dead_again,
            a_replay_touches_only_what_its_filter_matches,
            deliveries_are_listed_page_by_page,
            a_replay_keeps_the_order_of_a_key,
            a_discarded_dead_letter_is_given_up_with_its_reason,
            a_discarded_dead_letter_that_comes_again_is_a_duplicate,
            what_is_alive_is_neither_replayed_nor_discarded,
        }
        $crate::cases! { $subject, store_suite, ordering:
            messages_behind_a_failing_one_of_their_key_are_held,
            held_messages_go_on_when_their_handler_gives_up_its_order,
            other_keys_and_messages_without_a_key_go_on,
            a_handler_that_is_not_ordered_holds_nothing,
            a_dead_letter_lets_its_key_go_on,
            order_is_kept_by_concurrent_runners,
            order_is_kept_outside_the_database,
            an_inline_message_waits_behind_its_key,
        }
        $crate::cases! { $subject, store_suite, scheduling:
            a_scheduled_message_waits_for_its_time,
            a_message_scheduled_for_the_past_runs_at_once,
            the_first_run_of_a_scheduled_message_is_its_first_attempt,
            times_are_kept_to_the_microsecond,
            a_runner_wakes_by_itself_when_something_is_due,
        }
        $crate::cases! { $subject, store_suite, inline:
            an_inline_message_is_done_when_it_returns,
            inline_and_stored_messages_share_their_memory,
            an_inline_message_with_other_bytes_is_a_conflict,
            copies_in_one_inline_call_are_one_message,
            a_large_inline_call_is_answered_in_order,
            a_handler_sees_one_message_whichever_way_it_came,
            a_failed_inline_message_becomes_a_stored_delivery,
            a_permanent_inline_failure_is_a_dead_letter,
            a_bad_inline_message_leaves_its_neighbours_unharmed,
            an_inline_message_that_ends_the_transaction_loses_nothing,
            an_inline_message_that_hides_the_end_of_the_transaction_loses_nothing,
            a_slow_inline_call_loses_nothing,
            an_inline_batch_handler_gets_the_whole_call,
            an_outside_handler_of_an_inline_message_is_left_to_the_runner,
            an_inline_message_nobody_wants_is_stored,
            copies_processed_at_the_same_time_are_one_message,
            a_copy_takes_over_when_its_rival_dies,
            a_copy_is_a_duplicate_when_its_rival_commits,
            what_an_inline_handler_publishes_is_sent,
            a_direct_inbox_remembers_nothing,
        }
        $crate::cases! { $subject, store_suite, outside:
            an_outside_handler_holds_no_connection,
            outside_handlers_run_at_once_up_to_their_concurrency,
            a_failing_outside_handler_is_retried_and_then_dead,
            a_message_that_kills_the_process_outside_is_dead_after_its_attempts,
            who_has_lost_the_lease_settles_nothing,
            a_runner_that_finishes_too_late_does_not_undo_its_successor,
            a_long_call_keeps_its_lease,
        }
        $crate::cases! { $subject, store_suite, own_transaction:
            once_is_first_until_it_is_committed,
            once_tells_handlers_and_ids_apart,
            a_transaction_works_on_after_once_said_again,
            two_transactions_at_once_are_never_both_first,
            publish_belongs_to_the_callers_transaction,
            once_and_publish_are_refused_outside_a_transaction,
            publish_refuses_what_breaks_a_limit,
            once_is_remembered_as_long_as_message_ids,
        }
        $crate::cases! { $subject, store_suite, outbox:
            what_a_handler_publishes_is_sent_once_it_is_committed,
            what_was_rolled_back_is_never_sent,
            every_copy_of_an_outgoing_message_has_one_id,
            outgoing_messages_of_a_key_are_sent_in_order,
            messages_go_to_the_sink_they_name,
            a_scheduled_outgoing_message_waits_for_its_time,
            a_runner_sends_what_its_handlers_publish_at_once,
        }
        $crate::cases! { $subject, store_suite, relaying:
            an_unsendable_message_neither_blocks_nor_spins,
            a_message_that_hangs_the_sink_is_found_and_the_others_go_on,
            a_dead_outgoing_message_can_be_sent_again,
            messages_behind_an_unsent_one_of_their_key_wait,
            messages_behind_a_failing_one_of_their_key_outlive_it,
            a_sink_that_is_away_blames_no_message,
            two_relays_at_once_keep_the_order_of_each_key,
            a_relay_holds_no_transaction_while_the_sink_works,
            a_store_that_fails_while_the_relay_sends_loses_nothing,
            what_is_leased_ahead_is_sent_once_and_in_order,
            what_was_written_while_a_lease_is_under_way_is_not_sent_again,
            a_store_that_is_slow_to_write_bounds_what_is_sent,
            a_lease_ahead_that_fails_is_asked_for_again,
            a_lease_of_the_outbox_counts_from_when_it_was_asked_for,
            what_a_lease_was_too_short_for_goes_before_what_was_leased_ahead,
            an_outgoing_row_that_cannot_be_read_is_dead_and_the_others_are_sent,
            rows_that_cannot_be_read_make_no_lease_larger,
            an_outgoing_message_says_why_it_was_not_sent_and_when_it_is_tried_next,
        }
        $crate::cases! { $subject, store_suite, retention:
            an_id_blocks_duplicates_until_its_time_is_over,
            payloads_and_ids_are_kept_for_times_of_their_own,
            what_a_handler_still_wants_is_never_removed,
            unfinished_deliveries_outlive_every_retention,
            a_purge_is_done_in_bounded_steps,
            a_purge_during_redelivery_lets_no_copy_through,
            messages_that_come_after_everything_was_purged_are_handled,
            histories_conflicts_and_discarded_letters_are_removed_in_the_end,
        }
        $crate::cases! { $subject, store_suite, responses:
            a_claimed_key_is_in_flight_until_it_is_answered,
            a_response_comes_out_as_it_went_in,
            claims_at_the_same_time_have_one_owner,
            a_claim_is_taken_over_when_its_lease_is_over,
            who_has_lost_a_claim_answers_nothing,
            a_response_commits_with_the_work_of_its_request,
            a_duplicate_is_told_at_once_while_the_transaction_is_open,
            a_takeover_waits_for_the_transaction_or_gives_way,
            a_spoilt_transaction_leaves_no_response,
            a_request_publishes_with_its_response,
            a_response_is_forgotten_when_its_time_is_over,
        }
        $crate::cases! { $subject, store_suite, taking:
            one_lot_is_taken_ahead_and_stored_in_its_turn,
            a_stop_stores_what_was_taken_ahead,
            what_comes_after_messages_that_go_back_goes_back_too,
            an_error_while_messages_are_taken_ahead_is_told_in_its_turn,
            nothing_is_taken_ahead_from_a_source_that_is_told_to_pause,
            a_message_that_the_store_refuses_is_kept_and_harms_no_other,
            a_message_that_cannot_be_kept_either_is_rejected,
        }
        $crate::cases! { $subject, store_suite, pausing:
            a_paused_handler_runs_nothing_until_it_is_resumed,
            a_pause_is_remembered_by_the_store,
            retries_and_outside_calls_of_a_paused_handler_wait,
            pausing_an_unknown_handler_says_so,
        }
        $crate::cases! { $subject, store_suite, operating:
            a_paused_source_is_remembered_by_the_store,
            every_change_is_written_down_in_order,
            a_token_is_kept_under_its_name_until_it_is_removed,
            deliveries_are_counted_and_bounded_in_time,
            the_clock_of_the_database_is_told,
            a_delivery_in_a_state_of_the_future_is_listed_with_the_others,
        }
        $crate::cases! { $subject, store_suite, looking:
            a_message_is_shown_with_what_each_handler_made_of_it,
            an_inline_message_is_known_by_its_id_or_by_its_delivery,
            a_purged_message_is_known_by_its_id_alone,
            what_once_remembers_is_no_message,
            a_dead_letter_is_shown_as_it_is_listed,
            a_page_ends_once_it_has_its_bytes,
        }
        $crate::cases! { $subject, store_suite, replaying:
            a_replay_in_steps_replays_each_letter_once,
            a_replay_goes_no_faster_than_its_rate,
            processes_that_step_at_the_same_time_share_a_replay,
            a_step_that_is_given_up_is_done_or_was_never_begun,
            a_cancelled_replay_goes_no_further,
            a_replay_cancelled_in_the_middle_of_a_step_is_whole,
            a_replay_in_steps_keeps_the_order_of_a_key,
            replays_are_listed_and_keep_the_limit_of_their_filter,
            a_replay_of_a_newer_version_stops_no_other,
        }
        $crate::cases! { $subject, store_suite, searching:
            messages_are_found_by_every_field,
            a_search_finds_every_message_once_while_others_arrive,
            a_search_passes_over_what_was_purged,
        }
        $crate::cases! { $subject, store_suite, examining:
            a_healthy_store_has_no_findings,
            messages_that_nobody_takes_are_found,
            dead_letters_and_conflicts_are_found,
            outgoing_messages_that_nobody_sends_are_found,
        }
        $crate::cases! { $subject, store_suite, running:
            a_badly_behaved_source_has_each_effect_once_when_stored,
            a_badly_behaved_source_has_each_effect_once_inline,
            the_same_id_from_two_sources_is_two_messages,
            nothing_is_acknowledged_before_it_is_committed,
            an_unreadable_message_is_kept_and_stops_nobody,
            an_unreadable_message_waits_for_a_store_that_is_broken,
            an_idle_runner_is_woken_by_another_process,
            polling_alone_finds_everything,
            several_runners_share_the_work_and_double_nothing,
            a_handler_runs_in_several_transactions_at_once,
            one_connection_is_enough_for_everything,
            a_direct_inbox_gives_failures_back_to_the_source,
            a_direct_inbox_takes_nothing_to_be_stored,
            an_idle_transaction_of_somebody_else_stops_nobody,
        }
        $crate::cases! { $subject, store_suite, stopping:
            stopping_under_load_loses_and_doubles_nothing,
            a_stop_waits_for_what_is_running_and_sends_what_it_published,
            a_stop_settles_the_calls_that_are_running,
            a_dropped_runner_leaves_its_work_to_the_next,
        }
        $crate::cases! { $subject, store_suite, limits:
            a_message_at_every_limit_is_handled,
            a_message_over_a_limit_is_refused_with_the_name_of_the_field,
        }
        $crate::cases! { $subject, store_suite, telemetry:
            the_trace_of_a_message_goes_on_in_what_it_causes,
            counters_say_what_happened,
            counts_of_several_processes_add_up,
            the_lag_of_a_handler_is_the_age_of_its_oldest_message,
        }
        $crate::cases! { $subject, store_suite, claims:
            slow_and_fast_receivers_lose_nothing_to_runners,
            a_message_that_kills_the_process_is_dead_after_its_attempts,
            the_neighbours_of_a_message_that_kills_the_process_are_unharmed,
            the_neighbours_of_a_scheduled_killer_are_unharmed,
            lanes_of_a_dead_process_are_taken_over,
            what_was_read_ahead_is_taken_only_where_its_lane_stands,
            full_lanes_are_run_once_by_processes_that_read_ahead,
            who_has_lost_a_lane_commits_nothing,
            a_hanging_handler_does_not_stop_the_others,
        }
    };
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn every_case_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store_suite");
        let listed = std::fs::read_to_string(folder.join("mod.rs")).unwrap();
        for file in std::fs::read_dir(&folder).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            for case in text.lines().filter_map(|line| line.strip_prefix("pub async fn ")) {
                let name = case.split(['<', '(']).next().unwrap_or_default();
                assert!(listed.contains(&format!(" {name},\n")), "`{name}` is in no list");
            }
        }
    }
}
