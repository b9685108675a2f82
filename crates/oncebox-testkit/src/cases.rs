//! The macro behind the suites.

/// Makes a test of each case: `cases! { Subject, module: name, name, }`, for modules of the given suite.
#[doc(hidden)]
#[macro_export]
macro_rules! cases {
    ($subject:ty, $suite:ident, $module:ident: $($case:ident),* $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    if let Some(subject) = <$subject as $crate::Subject>::create().await {
                        $crate::within_deadline($crate::$suite::$module::$case(subject)).await;
                    }
                }
            )*
        }
    };
}
