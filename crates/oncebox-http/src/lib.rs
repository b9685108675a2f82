//! A POST that counts once: a [tower](https://docs.rs/tower) layer for axum that follows the IETF draft
//! "The Idempotency-Key HTTP Header Field".
//!
//! A client sends a key of its own choice with a request, and the same key when it tries again because it got no answer:
//!
//! ```text
//! POST /orders HTTP/1.1
//! Idempotency-Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"
//! ```
//!
//! The first request with a key runs the handler and stores its response; every later one gets that response. When the
//! handler takes a [`RequestTx`], its SQL and the stored response commit in one transaction, before the response is sent:
//! the request has its effect exactly once, whatever dies in between.
//!
//! ```
//! use axum::{Json, Router, http::StatusCode, routing::post};
//! use oncebox_http::{Idempotency, RequestTx};
//! use oncebox_sqlite::SqliteStore;
//!
//! async fn place_order(
//!     mut tx: RequestTx<SqliteStore>,
//!     Json(cents): Json<i64>,
//! ) -> Result<StatusCode, StatusCode> {
//!     sqlx::query("insert into orders (cents) values (?1)")
//!         .bind(cents)
//!         .execute(&mut *tx)
//!         .await
//!         .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
//!     Ok(StatusCode::CREATED)
//! }
//!
//! # async fn example() -> Result<(), oncebox_core::Error> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("shop.db").display().to_string();
//! let store = SqliteStore::open(&path).await?;
//! store.migrate().await?;
//! let app: Router = Router::new()
//!     .route("/orders", post(place_order))
//!     .layer(Idempotency::new(store).required());
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # What is answered
//!
//! | the request | the answer |
//! |---|---|
//! | a new key | what the handler answers |
//! | a known key with the same content | the stored response, with `idempotency-replayed: true` |
//! | a known key whose request is being handled | 409 with `retry-after` |
//! | a known key with other content (path, query, content type, body) | 422 |
//! | no key, where it is [required](Idempotency::required) | 400 |
//! | no key, where it is not | what the handler answers; nothing is stored |
//! | two keys, or one that is no string of RFC 8941, is empty or too long | 400 |
//! | a body over the [limit](Idempotency::request_limit) | 413 |
//! | the store is away, or the outcome of the commit is unknown | 503 with `retry-after`: send it again |
//!
//! Refusals are `application/problem+json` and say what to do.
//!
//! # What is stored
//!
//! | the handler | its SQL | its response |
//! |---|---|---|
//! | answers 2xx or 3xx | is committed | is stored |
//! | answers 4xx | is rolled back | is stored |
//! | answers 401, 403, 407, 408, 421, 423, 425 or 429 | is rolled back | is not stored: "not you" and "not now" may change |
//! | answers 5xx, panics, or the client goes away | is rolled back | is not stored: the next request with the key runs |
//!
//! A replay has the status, the body and the headers of the stored response, but for `set-cookie`, `date`, `age`,
//! `content-length`, `www-authenticate` and those of one connection (`connection`, `keep-alive`, `transfer-encoding`, …).
//! Trailers are not kept.
//!
//! # Without a transaction
//!
//! A handler that takes no [`RequestTx`] runs outside of one: the key is claimed first, the response stored afterwards. When
//! the process dies in between, nobody knows what the handler had done; the key is free again after the
//! [lease](Idempotency::lease), and the next request runs the handler again. That is at least once: hand the key on to
//! whatever the handler calls.

mod key;
mod layer;
mod problem;
mod request;
mod response;
mod service;
mod tx;

pub use layer::Idempotency;
pub use response::REPLAYED;
pub use service::IdempotencyService;
pub use tx::RequestTx;
