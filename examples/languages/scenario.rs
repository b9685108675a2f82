//! What every program in another language or driver must get right, on a database of its own.
//!
//! The program calls the SQL functions in its own transactions, with a role that may do nothing else. A runner in
//! this process handles what it received and relays what it published.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use oncebox::{Inbox, Store, run};
use oncebox_testkit::{Manners, MemoryBroker, until};
use sqlx::Transaction;

/// A program, and how it is run for one action (`charge` or `receive`), order and argument.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    #[allow(clippy::type_complexity, reason = "it is only named here")]
    pub(crate) run: Box<dyn Fn(&str, &str, &str) -> Command + Send + Sync>,
}

/// A database with the store and the shop's tables, and a user of its own for the program.
pub(crate) trait Shop: Clone + Send + Sync + 'static {
    type Store: Store;
    type Driver: sqlx::Database;

    /// The variable with the address of the server; without it nothing is played.
    const ADDRESS: &'static str;
    /// How long a runner may wait before it looks by itself.
    const POLL_EVERY: Duration;

    /// Makes the database and the user, who gets what the guide grants to a caller.
    fn create(address: &str) -> impl Future<Output = Self> + Send;
    /// Removes both.
    fn remove(&self) -> impl Future<Output = ()> + Send;
    fn store(&self) -> Self::Store;
    /// The address for the program.
    fn url(&self) -> &str;
    /// Runs the statement and keeps what it has locked.
    fn rival(
        &self,
        statement: &'static str,
    ) -> impl Future<Output = Transaction<'static, Self::Driver>> + Send;
    /// How many sessions of the program wait for a lock.
    fn waiting(&self) -> impl Future<Output = usize> + Send;
    /// How often this order was charged.
    fn charges(&self, order: &str) -> impl Future<Output = i64> + Send;
    /// How many messages with this order's key are in the outbox.
    fn outgoing(&self, order: &str) -> impl Future<Output = i64> + Send;
    /// An inbox whose handler `record` notes each `order.placed` as an effect, in a table that this makes.
    fn recording(&self) -> impl Future<Output = Inbox<Self::Store>> + Send;
    /// What was recorded, by id.
    fn effects(&self) -> impl Future<Output = Vec<Effect>> + Send;
}

/// What the handler saw of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) source: String,
}

/// A payload that careless quoting, escaping or encoding would change.
const ODD: &str = r#"{"note":"it's \\ \n 100% \u0000 é 😀","cents":250}"#;

/// Plays all of it, unless there is no server.
pub(crate) async fn play<S: Shop>(program: Program) {
    let Ok(address) = std::env::var(S::ADDRESS) else {
        // Not `eprintln`, which the test harness swallows for tests that pass.
        let text =
            format!("not run: {} ({} is not set; `cargo xtask test` sets it)\n", program.name, S::ADDRESS);
        let _ = std::io::stderr().write_all(text.as_bytes());
        return;
    };
    let shop = S::create(&address).await;
    let scenario = Scenario { program, shop: shop.clone() };
    let played = tokio::spawn(async move {
        scenario.charges_once().await;
        scenario.rivals_charge_once().await;
        scenario.keeps_nothing_of_a_failure().await;
        scenario.receives_once().await;
        scenario.relays_what_was_published().await;
    })
    .await;
    shop.remove().await;
    if let Err(panic) = played {
        std::panic::resume_unwind(panic.into_panic());
    }
}

struct Scenario<S> {
    program: Program,
    shop: S,
}

impl<S: Shop> Scenario<S> {
    /// Runs the program to its end; its answer, or what it complained about.
    async fn call(&self, action: &str, order: &str, argument: &str) -> Result<String, String> {
        let mut command = (self.program.run)(action, order, argument);
        command.env("DATABASE_URL", self.shop.url()).stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// The same call twice at once: both are held back by this statement until both have come, then let go.
    async fn call_twice_at_once(
        &self,
        hold: &'static str,
        action: &str,
        order: &str,
        argument: &str,
    ) -> [String; 2] {
        let rival = self.shop.rival(hold).await;
        let let_go = async {
            until("the programs wait for the lock", || async { self.shop.waiting().await == 2 }).await;
            rival.rollback().await.unwrap();
        };
        let (one, two, ()) =
            tokio::join!(self.call(action, order, argument), self.call(action, order, argument), let_go);
        let mut answers = [one.unwrap(), two.unwrap()];
        answers.sort();
        answers
    }

    /// The same message handed in twice has one effect.
    async fn charges_once(&self) {
        assert_eq!(self.call("charge", "7", "100").await.as_deref(), Ok("first"));
        assert_eq!(self.call("charge", "7", "100").await.as_deref(), Ok("again"));
        assert_eq!(self.shop.charges("7").await, 1);
    }

    /// Handed in twice at the same time, it has one effect too.
    async fn rivals_charge_once(&self) {
        let hold = "select oncebox.once('charge-card', 'order-8')";
        let answers = self.call_twice_at_once(hold, "charge", "8", "100").await;
        assert_eq!(answers, ["again", "first"]);
        assert_eq!(self.shop.charges("8").await, 1);
    }

    /// The table refuses the amount after the message was published: nothing of it stays, and it can be tried again.
    async fn keeps_nothing_of_a_failure(&self) {
        let error = self.call("charge", "9", "100001").await.unwrap_err();
        assert!(error.contains("charge_cents_check"), "{error}");
        assert_eq!(self.shop.charges("9").await, 0);
        assert_eq!(self.shop.outgoing("9").await, 0);
        assert_eq!(self.call("charge", "9", "100").await.as_deref(), Ok("first"));
    }

    /// Received twice, also at the same time, and handled once, with the very bytes; other bytes are a conflict.
    async fn receives_once(&self) {
        let inbox = self.shop.recording().await;
        run(inbox.clone()).drain().await.unwrap();
        let running = tokio::spawn(run(inbox).poll_every(S::POLL_EVERY).into_future());
        assert_eq!(self.call("receive", "7", ODD).await.as_deref(), Ok("new"));
        assert_eq!(self.call("receive", "7", ODD).await.as_deref(), Ok("duplicate"));
        assert_eq!(self.call("receive", "7", "other").await.as_deref(), Ok("conflict"));

        let hold = "update oncebox.head set seq = seq";
        let answers = self.call_twice_at_once(hold, "receive", "8", ODD).await;
        assert_eq!(answers, ["duplicate", "new"]);

        until("both orders are handled", || async { self.shop.effects().await.len() == 2 }).await;
        running.abort();
        let expected = ["7", "8"].map(|order| Effect {
            id: format!("order-{order}"),
            key: order.to_owned(),
            payload: ODD.as_bytes().to_vec(),
            source: self.program.name.to_owned(),
        });
        assert_eq!(self.shop.effects().await, expected);
    }

    /// What committed goes out, once for each, with its key, its headers and its bytes.
    async fn relays_what_was_published(&self) {
        let broker = MemoryBroker::new(1, Manners::GOOD);
        run(Inbox::new(self.shop.store())).relay(broker.clone()).drain().await.unwrap();
        let mut sent = broker.sent();
        sent.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(
            sent.iter().filter_map(|message| message.key.as_deref()).collect::<Vec<_>>(),
            ["7", "8", "9"]
        );
        for message in sent {
            assert_eq!(message.kind, "order.paid");
            assert_eq!(message.headers.text("source"), Some(self.program.name));
            let paid: serde_json::Value = message.decode().unwrap();
            assert_eq!(paid, serde_json::json!({ "order_id": message.key, "cents": 100 }));
        }
    }
}
