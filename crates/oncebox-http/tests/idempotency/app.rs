//! The application under test: an order is a row in a table without a unique key, so that a double shows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use oncebox_core::{Message, ResponseStore};
use oncebox_http::{Idempotency, RequestTx};
use oncebox_testkit::{Effect, Faulty, Plan, Subject};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What a handler shares with its test.
pub(crate) struct App<T> {
    pub(crate) subject: Arc<T>,
    /// How many handlers have written their row and were told to wait.
    entered: watch::Sender<usize>,
    /// Lets those who wait go on.
    open: watch::Sender<bool>,
    calls: AtomicUsize,
    plan: Plan,
}

impl<T> App<T> {
    /// Makes handlers wait again that are told to.
    pub(crate) fn close(&self) {
        self.open.send_replace(false);
    }
}

/// A server of its own on a port of its own.
pub(crate) struct Server<T> {
    pub(crate) address: SocketAddr,
    pub(crate) app: Arc<App<T>>,
    task: tokio::task::JoinHandle<()>,
}

impl<T> Drop for Server<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T> Server<T> {
    /// Waits until so many handlers have written their row and wait.
    pub(crate) async fn entered(&self, count: usize) {
        self.app.entered.subscribe().wait_for(|entered| *entered >= count).await.unwrap();
    }

    /// Lets all handlers go on that were told to wait.
    pub(crate) fn open(&self) {
        self.app.open.send_replace(true);
    }

    pub(crate) fn calls(&self) -> usize {
        self.app.calls.load(Ordering::SeqCst)
    }
}

pub(crate) type StoreOf<T> = Faulty<<T as Subject>::Store>;

/// A server on the subject's store.
pub(crate) async fn serve<T: Subject>(subject: &Arc<T>) -> Server<T>
where
    T::Store: ResponseStore,
{
    serve_with(subject, subject.store(), Plan::none(), |layer| layer).await
}

pub(crate) async fn serve_with<T: Subject>(
    subject: &Arc<T>,
    store: T::Store,
    plan: Plan,
    configure: impl FnOnce(Idempotency<StoreOf<T>>) -> Idempotency<StoreOf<T>>,
) -> Server<T>
where
    T::Store: ResponseStore,
{
    let app = Arc::new(App {
        subject: subject.clone(),
        entered: watch::Sender::new(0),
        open: watch::Sender::new(false),
        calls: AtomicUsize::new(0),
        plan: plan.clone(),
    });
    let layer = configure(Idempotency::new(Faulty::new(store, plan)));
    let router = Router::new()
        .route("/orders", post(place::<T>).patch(place::<T>).get(place::<T>))
        .route("/orders/{id}/refunds", post(place::<T>))
        .route("/mails", post(mail::<T>))
        .layer(layer)
        .route("/struck", get(struck::<T>))
        .with_state(app.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    Server { address, app, task }
}

fn effect(id: &str) -> Effect {
    Effect { id: id.to_owned(), handler: "order".to_owned(), note: String::new() }
}

/// The ids of all orders that were placed, doubles and all.
pub(crate) async fn placed<T: Subject>(subject: &T) -> Vec<String> {
    let mut ids: Vec<String> = subject.effects().await.into_iter().map(|effect| effect.id).collect();
    ids.sort();
    ids
}

/// Places an order in the transaction of the request, and then does what it is told.
async fn place<T: Subject>(
    State(app): State<Arc<App<T>>>,
    mut tx: RequestTx<StoreOf<T>>,
    headers: HeaderMap,
    body: String,
) -> Response
where
    T::Store: ResponseStore,
{
    let number = app.calls.fetch_add(1, Ordering::SeqCst) + 1;
    if T::record(&mut tx, effect(&body)).await.is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let told = headers.get("x-do").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    match told.as_str() {
        "publish" => {
            tx.publish(Message::new("order.placed", body).id("published")).await.unwrap();
        }
        "swallow" => {
            let _ = T::fail(&mut tx).await;
            if !T::FACTS.error_aborts_transaction {
                let _ = T::end_transaction(&mut tx).await;
            }
        }
        "end" => {
            let _ = T::end_transaction(&mut tx).await;
        }
        "fail at commit" => T::fail_at_commit(&mut tx).await.unwrap(),
        "keep" => {
            tokio::spawn(async move {
                let _kept = tx;
                std::future::pending::<()>().await;
            });
        }
        _ => {}
    }
    behave(&app, &told, number).await
}

/// Sends a mail: an effect outside of the request's transaction, which it does not ask for.
async fn mail<T: Subject>(State(app): State<Arc<App<T>>>, headers: HeaderMap, body: String) -> Response
where
    T::Store: ResponseStore,
{
    let number = app.calls.fetch_add(1, Ordering::SeqCst) + 1;
    let mut own = app.subject.begin().await;
    T::record(&mut own, effect(&body)).await.unwrap();
    T::commit(own).await;
    let told = headers.get("x-do").and_then(|value| value.to_str().ok()).unwrap_or_default();
    behave(&app, told, number).await
}

async fn behave<T>(app: &App<T>, told: &str, number: usize) -> Response {
    if told == "wait" {
        app.entered.send_modify(|entered| *entered += 1);
        app.open.subscribe().wait_for(|open| *open).await.unwrap();
    }
    if told == "panic" {
        panic!("on purpose");
    }
    if told == "large" {
        return "x".repeat(3000).into_response();
    }
    if let Ok(status) = told.parse() {
        let status = StatusCode::from_u16(status).unwrap();
        return (status, format!("refusal {number}")).into_response();
    }
    let headers = [
        ("location", format!("/orders/{number}")),
        ("set-cookie", "secret=1".to_owned()),
        ("x-kind", "first".to_owned()),
    ];
    (StatusCode::CREATED, headers, format!("order {number}")).into_response()
}

/// Answers once the planned fault has happened, or a handler waits.
async fn struck<T>(State(app): State<Arc<App<T>>>) -> &'static str {
    let mut entered = app.entered.subscribe();
    tokio::select! {
        () = app.plan.struck() => "struck",
        _ = entered.wait_for(|entered| *entered > 0) => "waiting",
    }
}
