//! The transaction as an argument of an axum handler.

use std::fmt;
use std::ops::{Deref, DerefMut};

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use oncebox_core::responses::{RequestTransaction, ResponseStore};
use oncebox_core::{Error, ErrorKind, Message, Tx};

use crate::problem::Problem;

/// The transaction of a request: its SQL, its outgoing messages and the stored response commit together.
///
/// It dereferences to the driver's connection: `sqlx::query(…).execute(&mut *tx)`. Let it go out of scope when you are done;
/// the layer [`Idempotency`](crate::Idempotency) takes it back and commits it before the response is sent, when the status
/// is 2xx or 3xx, and rolls it back otherwise. There is no `commit` here on purpose. It begins when axum makes the argument:
/// put it behind arguments that wait for something.
///
/// A request without a key gets a transaction too; only no response is stored with it.
///
/// ```
/// use axum::http::StatusCode;
/// use oncebox_core::Message;
/// use oncebox_http::RequestTx;
/// use oncebox_sqlite::SqliteStore;
///
/// async fn place_order(mut tx: RequestTx<SqliteStore>) -> Result<StatusCode, StatusCode> {
///     let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
///     sqlx::query("insert into orders (cents) values (500)").execute(&mut *tx).await.map_err(failed)?;
///     tx.publish(Message::new("order.placed", "500")).await.map_err(|_| StatusCode::BAD_REQUEST)?;
///     Ok(StatusCode::CREATED)
/// }
/// # let _: axum::Router = axum::Router::new().route("/", axum::routing::post(place_order));
/// ```
pub struct RequestTx<St: ResponseStore>(Tx<St::Connection>);

impl<St: ResponseStore> RequestTx<St> {
    /// Sends a message once this transaction has committed, and never if it does not.
    ///
    /// Answers the message's id. Fails when the message breaks a limit.
    pub async fn publish(&mut self, message: Message) -> Result<String, Error> {
        self.0.publish(message).await
    }
}

impl<St: ResponseStore, S: Send + Sync> FromRequestParts<S> for RequestTx<St> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Response> {
        let lender = parts.extensions.get::<RequestTransaction<St>>().cloned();
        let lender = lender.ok_or_else(|| Problem::no_layer().into_response())?;
        let begun = lender.begin().await;
        begun.map(Self).map_err(|error| match error.kind() {
            // Somebody else has the key by now; the layer looks what became of it.
            ErrorKind::Fenced => Problem::in_flight().into_response(),
            _ => Problem::of_store(&error).into_response(),
        })
    }
}

impl<St: ResponseStore> Deref for RequestTx<St> {
    type Target = St::Driver;

    fn deref(&self) -> &St::Driver {
        &self.0
    }
}

impl<St: ResponseStore> DerefMut for RequestTx<St> {
    fn deref_mut(&mut self) -> &mut St::Driver {
        &mut self.0
    }
}

impl<St: ResponseStore> fmt::Debug for RequestTx<St> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RequestTx").finish_non_exhaustive()
    }
}
