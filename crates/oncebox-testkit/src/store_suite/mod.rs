//! What every store must do, case by case. The names are the rules.
//!
//! Each case is an `async fn` that takes a fresh [`Subject`]. To add one, write it in the file of its topic and add its
//! name to the list in [`store_suite!`](crate::store_suite): a case that is not listed does not compile without a
//! warning, because nothing uses it.

mod fixtures;

pub mod failing;
pub mod receiving;

/// Runs every case of the store suite as a test of its own: `store_suite!(MySubject);`.
#[macro_export]
macro_rules! store_suite {
    ($subject:ty) => {
        $crate::cases! { $subject, store_suite, receiving:
            a_new_message_is_stored_and_a_copy_is_a_duplicate,
        }
    };
}
