//! What the source and the sink of every broker must do, case by case, against the real server.
//!
//! Each case takes a fresh [`BrokerSubject`] and a fresh store [`Subject`](crate::Subject). To add one, write it in the
//! file of its topic and add its name to the list in [`broker_suite!`](crate::broker_suite!); a test here fails when it
//! is missing.

pub mod checking;
mod fixtures;
pub mod intake;
pub mod order;
pub mod outages;
pub mod picking;
pub mod pressure;
pub mod round_trip;
pub mod sending;
pub mod stopping;
mod subject;
pub mod unreadable;

pub use subject::{BrokerFacts, BrokerSubject, Restart, SOURCE};

/// Makes a test of each case.
#[doc(hidden)]
#[macro_export]
macro_rules! broker_cases {
    ($broker:ty, $store:ty, $create:ident, $module:ident: $($case:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let Some(broker) = <$broker as $crate::BrokerSubject>::$create().await else { return };
                let Some(store) = <$store as $crate::Subject>::create().await else { return };
                $crate::within_deadline($crate::broker_suite::$module::$case(broker, store)).await;
            }
        )*
    };
}

/// Runs every case of the broker suite as a test of its own: `broker_suite!(MyBroker, SqliteSubject);`.
#[macro_export]
macro_rules! broker_suite {
    ($broker:ty, $store:ty) => {
        $crate::broker_cases! { $broker, $store, create, intake:
            everything_put_is_applied_once_and_acknowledged,
            everything_is_handled_inline_once,
            nothing_is_acknowledged_before_it_is_committed,
            a_death_between_commit_and_acknowledgement_makes_a_duplicate,
            a_death_before_the_commit_makes_a_redelivery,
            a_storm_of_copies_has_one_effect_each,
            a_storm_of_redeliveries_has_one_effect_each,
            sources_share_a_queue_and_take_over_from_each_other,
        }
        $crate::broker_cases! { $broker, $store, create, unreadable:
            a_message_with_an_impossible_id_is_kept,
            a_body_that_cannot_be_decoded_is_kept,
            a_kind_that_nobody_wants_is_stored,
        }
        $crate::broker_cases! { $broker, $store, create, picking:
            parts_are_read_from_headers,
            parts_are_read_from_json,
            parts_are_read_from_cloud_events,
            parts_are_read_from_route_and_hash,
            equal_payloads_have_one_hash,
            ids_are_read_from_the_brokers_own_place,
        }
        $crate::broker_cases! { $broker, $store, create, round_trip:
            a_message_arrives_as_it_was_published,
            the_trace_goes_in_and_out,
        }
        $crate::broker_cases! { $broker, $store, create, order:
            order_is_kept_from_the_queue_to_the_effect,
            order_is_kept_from_the_outbox_to_the_destination,
        }
        $crate::broker_cases! { $broker, $store, create, pressure:
            what_has_arrived_comes_together_without_waiting,
            no_more_is_handed_over_than_asked_for,
            a_dropped_next_takes_nothing_with_it,
            a_slow_store_bounds_what_is_taken,
            the_lag_is_shown,
        }
        $crate::broker_cases! { $broker, $store, create, sending:
            what_is_confirmed_is_there,
            what_goes_nowhere_is_not_confirmed,
            a_dropped_send_spoils_no_later_one,
        }
        $crate::broker_cases! { $broker, $store, create, checking:
            a_check_finds_what_is_there_and_takes_nothing,
            a_check_names_the_server_that_is_away,
        }
        $crate::broker_cases! { $broker, $store, create, stopping:
            stopping_fifty_times_under_load_loses_and_doubles_nothing,
        }
        $crate::broker_cases! { $broker, $store, create, outages:
            a_cut_connection_of_a_source_is_made_again,
            a_half_open_connection_of_a_source_is_noticed,
            an_outage_is_shown_and_ends_by_itself,
            a_sink_loses_nothing_to_broken_connections,
            what_is_not_confirmed_stays_in_the_outbox,
        }
        $crate::broker_cases! { $broker, $store, create_alone, outages:
            a_restart_of_the_broker_loses_and_doubles_nothing,
        }
    };
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn every_case_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/broker_suite");
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
