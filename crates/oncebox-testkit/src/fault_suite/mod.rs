//! What a store must survive: faults before and after every call, killed processes, futures dropped half-way.
//!
//! A scenario takes every path through the engine: messages received with copies, a handler with a transaction that
//! also publishes, one that works outside the database, an ordered one, first attempts that fail, dead letters,
//! inline, the caller's own transaction, the relay, an operator's calls. A dry run learns how often it calls each
//! store method; then it is lived with one fault at a time, finished as a restarted process would, and checked:
//! exactly one effect each, order per key, every committed outgoing message sent and no other, nothing stuck.

pub mod children;
pub mod deadly;
pub mod drops;
mod invariants;
mod journal;
pub mod killed;
pub mod points;
pub mod renewal;
mod scenario;

/// Runs every case of the fault suite as a test of its own: `fault_suite!(MySubject);`.
///
/// Tests are named after the fault and the store's method: `error_once::commit`. The killed processes are children of
/// the test binary, which starts itself again for one test named `killed::child`.
#[macro_export]
macro_rules! fault_suite {
    ($subject:ty) => {
        $crate::cases! { $subject, fault_suite, points:
            without_a_fault_everything_holds, an_overtaken_process_leaves_the_work_to_its_successor,
        }
        $crate::faults_in_every_method! { $subject:
            receive, register, claim, release, begin_lanes, begin_leased, begin_inline, begin_plain, commit, lease,
            settle, once, publish, lease_outgoing, settle_outgoing, set_paused, forget, deliveries, replay, discard,
            replay_outgoing, conflicts, handlers, wanted_kinds, outbox, add_counts, counts, purge, announce,
        }
        mod stalled {
            use super::*;
            $crate::stalls! { $subject:
                receive, claim, release, begin_lanes, begin_leased, begin_inline, lease, settle, lease_outgoing,
                settle_outgoing, add_counts,
            }
        }
        $crate::cases! { $subject, fault_suite, renewal:
            a_handler_whose_lease_cannot_be_renewed_still_finishes,
        }
        $crate::cases! { $subject, fault_suite, drops:
            receive, process, process_all, drain, drain_of_retries, once_and_publish, replay, discard, set_paused,
            purge, reads,
        }
    };
}

/// A test per fault and method.
#[doc(hidden)]
#[macro_export]
macro_rules! faults_in_every_method {
    ($subject:ty: $($method:ident),* $(,)?) => {
        static CALLS: $crate::fault_suite::points::Calls = $crate::fault_suite::points::Calls::const_new();

        mod error_once {
            use super::*;
            $($crate::fault_case! {
                $method: $crate::fault_suite::points::fail_in::<$subject>(
                    &CALLS, stringify!($method), $crate::How::ErrorOnce)
            })*
        }
        mod error_for_ever {
            use super::*;
            $($crate::fault_case! {
                $method: $crate::fault_suite::points::fail_in::<$subject>(
                    &CALLS, stringify!($method), $crate::How::ErrorForEver)
            })*
        }
        mod dropped {
            use super::*;
            $($crate::fault_case! {
                $method: $crate::fault_suite::points::fail_in::<$subject>(
                    &CALLS, stringify!($method), $crate::How::Hang)
            })*
        }
        mod killed {
            use super::*;
            $($crate::fault_case! {
                $method: $crate::fault_suite::killed::die_in::<$subject>(
                    &CALLS, stringify!($method), &child_test())
            })*
            $crate::child_cases! { $subject, killed:
                a_runner_killed_at_any_moment_loses_and_doubles_nothing,
            }
            $crate::child_cases! { $subject, deadly:
                a_message_that_kills_the_process_is_dead_after_its_attempts,
                a_message_that_kills_an_outside_handler_is_dead_after_its_attempts,
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn child() {
                $crate::fault_suite::children::work::<$subject>().await;
            }

            fn child_test() -> String {
                $crate::fault_suite::children::test_in(module_path!(), "child")
            }
        }
    };
}

/// A test per method in which a process stands still.
#[doc(hidden)]
#[macro_export]
macro_rules! stalls {
    ($subject:ty: $($method:ident),* $(,)?) => {
        $($crate::fault_case! {
            $method: $crate::fault_suite::points::stall_in::<$subject>(&CALLS, stringify!($method))
        })*
    };
}

/// One test that makes its own subjects.
#[doc(hidden)]
#[macro_export]
macro_rules! fault_case {
    ($name:ident: $case:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $crate::within_deadline($case).await;
        }
    };
}

/// Tests that start children.
#[doc(hidden)]
#[macro_export]
macro_rules! child_cases {
    ($subject:ty, $module:ident: $($case:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(subject) = <$subject as $crate::Subject>::create().await {
                    $crate::within_deadline($crate::fault_suite::$module::$case(subject, &child_test())).await;
                }
            }
        )*
    };
}
