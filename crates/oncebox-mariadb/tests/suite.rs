//! The store suite of the test kit, on MariaDB, and what only MariaDB can get wrong.

mod support;

use oncebox_testkit::store_suite;
use support::MariaSubject;

store_suite!(MariaSubject);
