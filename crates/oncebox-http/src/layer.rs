//! The layer and its settings.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use http::request::Parts;
use oncebox_core::clock::Seed;
use oncebox_core::responses::ResponseStore;
use oncebox_core::store::TxLimits;
use tokio::time::Instant;
use tower_layer::Layer;

use crate::key::Spelling;
use crate::problem::Problem;
use crate::request::authorized;
use crate::service::IdempotencyService;

/// A layer that makes each request with an `Idempotency-Key` count once; see the [crate](crate) for what it answers.
///
/// It reads the whole body of a POST or PATCH before the handler runs, and the whole response before it is sent. Put it
/// around the routes that need it, and inside of the layers that find out who is calling.
///
/// ```
/// use std::time::Duration;
///
/// use axum::{Router, routing::post};
/// use oncebox_http::Idempotency;
/// use oncebox_sqlite::SqliteStore;
///
/// #[derive(Clone)]
/// struct User(String);
///
/// fn routes(store: SqliteStore) -> Router {
///     let idempotency = Idempotency::new(store)
///         .required()
///         .caller(|parts| parts.extensions.get::<User>().map(|user| user.0.clone()))
///         .keep(Duration::from_secs(7 * 24 * 3600));
///     Router::new().route("/orders", post(|| async { "placed" })).layer(idempotency)
/// }
/// ```
#[derive(Clone)]
pub struct Idempotency<St> {
    settings: Arc<Settings<St>>,
}

type Caller = Arc<dyn Fn(&Parts) -> Result<Vec<u8>, Problem> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Settings<St> {
    pub(crate) store: St,
    pub(crate) required: bool,
    pub(crate) spelling: Spelling,
    pub(crate) methods: Vec<Method>,
    pub(crate) scope: String,
    pub(crate) caller: Caller,
    pub(crate) keep: Duration,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) request_limit: usize,
    pub(crate) response_limit: usize,
    pub(crate) limits: TxLimits,
    pub(crate) purge_every: Duration,
    pub(crate) purged_at: Arc<Mutex<Instant>>,
    pub(crate) seed: Arc<Seed>,
}

impl<St: ResponseStore> Idempotency<St> {
    /// A layer that keeps responses in this store, whose tables must be there (`store.migrate()`).
    pub fn new(store: St) -> Self {
        let settings = Settings {
            store,
            required: false,
            spelling: Spelling::Quoted,
            methods: vec![Method::POST, Method::PATCH],
            scope: String::new(),
            caller: Arc::new(authorized),
            keep: Duration::from_secs(24 * 3600),
            lease: Duration::from_secs(10),
            wait: Duration::ZERO,
            request_limit: 2 * 1024 * 1024,
            response_limit: 1024 * 1024,
            limits: TxLimits { statement: Duration::from_secs(30) },
            purge_every: Duration::from_secs(60),
            purged_at: Arc::new(Mutex::new(Instant::now())),
            seed: Arc::new(Seed::from_system()),
        };
        Self { settings: Arc::new(settings) }
    }

    /// Refuses a POST or PATCH without a key, with 400. Unless set, such a request runs and nothing is stored.
    pub fn required(self) -> Self {
        self.with(|settings| settings.required = true)
    }

    /// Also reads keys without quotes (`Idempotency-Key: 8e03978e`), as many clients send them; the draft wants quotes.
    pub fn allow_bare_keys(self) -> Self {
        self.with(|settings| settings.spelling = Spelling::QuotedOrBare)
    }

    /// The methods whose keys are looked at; POST and PATCH unless set. Others pass as if there were no key.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|settings| settings.methods = methods.into_iter().collect())
    }

    /// Sets the keys of this service apart from those of others that share the store and have a route of the same name.
    pub fn scope(self, scope: impl Into<String>) -> Self {
        self.with(|settings| settings.scope = scope.into())
    }

    /// Says whose request it is: two callers never see each other's responses, whatever key they send.
    ///
    /// `None` is refused with 401. Give a name that stays the same as long as keys are kept, such as the id of the user or
    /// the tenant, best put into the request's extensions by a layer around this one.
    ///
    /// Unless set, it is the hash of the header `Authorization`, and everybody without that header is the same caller. With
    /// tokens that change (a JWT that is renewed every few minutes) a retry would look like somebody else's request and run
    /// again, so set it there. A request with a cookie and no `Authorization` is refused with 500 until it is set.
    pub fn caller(self, caller: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        let caller: Caller =
            Arc::new(move |parts| caller(parts).map(String::into_bytes).ok_or_else(Problem::caller_unknown));
        self.with(|settings| settings.caller = caller)
    }

    /// How long a key is remembered, from its first request on, by the database's clock; 24 hours unless set.
    ///
    /// After that the same key is a new one, and its request runs again: keep keys longer than your clients try again.
    pub fn keep(self, keep: Duration) -> Self {
        self.with(|settings| settings.keep = keep)
    }

    /// How long the key of a process that died is held for it; 10 seconds unless set.
    ///
    /// While a handler runs, its claim is renewed every third of it, or held by its transaction.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|settings| settings.lease = lease)
    }

    /// How long a request waits for another one with the same key, before it is refused with 409; not at all unless set.
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|settings| settings.wait = wait)
    }

    /// The most bytes of a request's body; 2 MiB unless set. More is refused with 413.
    pub fn request_limit(self, bytes: usize) -> Self {
        self.with(|settings| settings.request_limit = bytes)
    }

    /// The most bytes of a response's body; 1 MiB unless set. A handler that answers more has failed: its SQL is rolled
    /// back, and the client gets 500.
    pub fn response_limit(self, bytes: usize) -> Self {
        self.with(|settings| settings.response_limit = bytes)
    }

    /// The longest a single statement of a handler's transaction, or a pause between two, may take; 30 seconds unless set.
    pub fn statement_limit(self, limit: Duration) -> Self {
        self.with(|settings| settings.limits = TxLimits { statement: limit })
    }

    /// How often expired responses are removed, by whatever request comes next; once a minute unless set.
    pub fn purge_every(self, pause: Duration) -> Self {
        self.with(|settings| settings.purge_every = pause)
    }

    fn with(self, change: impl FnOnce(&mut Settings<St>)) -> Self {
        let mut settings = Arc::unwrap_or_clone(self.settings);
        change(&mut settings);
        Self { settings: Arc::new(settings) }
    }
}

impl<St, S> Layer<S> for Idempotency<St> {
    type Service = IdempotencyService<St, S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(self.settings.clone(), inner)
    }
}

impl<St> fmt::Debug for Idempotency<St> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Idempotency")
            .field("required", &self.settings.required)
            .field("keep", &self.settings.keep)
            .finish_non_exhaustive()
    }
}
