//! One round: everything is measured once, what is compared next to each other.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, try_join_all};
use indicatif::ProgressBar;
use oncebox::{Inbox, Message, Processed, Received, Store, run};
use sqlx::Connection;
use tokio::sync::Mutex;

use crate::bench::measure::{
    BATCH, batch_inbox, id, messages, rate, receive, receive_as, rows, single_inbox, text,
};
use crate::bench::yard::{Driver, Row, Yard};
use crate::target::Place;

/// How many measurements a round has.
pub(crate) const STEPS: u64 = 18;
/// How many callers ingest one by one.
pub(crate) const CALLERS: usize = 8;
/// How often each statement runs before it is timed: the pool of Oncebox hands out its connections in turns, and each of
/// them has to prepare a statement first and plans it anew the first five times.
const WARM: usize = 60;
/// Messages per statement when warming up: as few as that are planned as many are.
const FEW: usize = 20;
/// One of so many messages is a copy where some are.
const COPY_EVERY: usize = 100;

/// Rates, in messages per second.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) floor_insert: f64,
    /// The same into a table that has grown.
    pub(crate) floor_insert_later: f64,
    pub(crate) floor_loop: f64,
    pub(crate) floor_batch: f64,
    pub(crate) recipe_ingest: f64,
    pub(crate) recipe_ingest_batch: f64,
    pub(crate) recipe_process: f64,
    pub(crate) recipe_process_batch: f64,
    pub(crate) ingest_batch: f64,
    pub(crate) ingest_single: f64,
    pub(crate) ingest_some_duplicates: f64,
    pub(crate) ingest_duplicates: f64,
    pub(crate) process: f64,
    pub(crate) process_batch: f64,
    pub(crate) process_others: f64,
    pub(crate) process_batch_others: f64,
    pub(crate) inline: f64,
}

/// Measures on empty tables. `turned`: what is compared is measured in the opposite order.
pub(crate) async fn measure<T: Yard>(
    place: &Place,
    yard: &T,
    count: usize,
    turned: bool,
    bar: &ProgressBar,
) -> Result<Round, String> {
    let elsewhere = T::open(place, 4).await?;
    let mut recipe = Vec::new();
    for _ in 0..T::RECIPE_CALLERS {
        recipe.push(Mutex::new(yard.connect().await.map_err(text)?));
    }
    let bench = Bench {
        yard,
        floor: Mutex::new(yard.connect().await.map_err(text)?),
        recipe,
        single: single_inbox(yard, "single"),
        set: batch_inbox(yard, "set"),
        other: Inbox::new(elsewhere.store()),
        count,
        // What commits one by one is many times slower.
        few: (count / 10).max(500),
        turned,
        bar,
    };
    let mut round = Round::default();
    bench.warm().await?;
    bench.ingest(&mut round).await?;
    bench.process(&mut round).await?;
    bench.process_sets(&mut round).await?;
    bench.handle_inline(&mut round).await?;
    bench.ingest_duplicates(&mut round).await?;
    bench.close().await?;
    elsewhere.close().await;
    Ok(round)
}

struct Bench<'a, T: Yard> {
    yard: &'a T,
    /// The floor's connection.
    floor: Mutex<Driver<T>>,
    /// The recipe's connections: one for each that ingests one by one, the first one for everything else.
    recipe: Vec<Mutex<Driver<T>>>,
    single: Inbox<T::Store>,
    set: Inbox<T::Store>,
    /// A handle of its own, as another process has it.
    other: Inbox<T::Store>,
    count: usize,
    few: usize,
    turned: bool,
    bar: &'a ProgressBar,
}

impl<T: Yard> Bench<'_, T> {
    /// When they are only dropped, they close later, and SQLite removes files that it knows by their names then.
    async fn close(self) -> Result<(), String> {
        for connection in self.recipe.into_iter().chain([self.floor]) {
            connection.into_inner().close().await.map_err(text)?;
        }
        Ok(())
    }

    fn step(&self, name: &'static str) {
        self.bar.set_message(name);
        self.bar.inc(1);
    }

    /// Runs each statement that is timed later a few times, on every connection.
    async fn warm(&self) -> Result<(), String> {
        self.step("warming up");
        // A new handler starts with the next message, so both must be known before the first one comes.
        self.drain_all().await?;
        self.recipe_one_by_one(&rows("warm-recipe", WARM * CALLERS)).await?;
        let (floor, recipe) = (rows("warm", WARM * FEW), rows("warm-fill", WARM * FEW));
        let ids: Vec<String> = (0..WARM).map(|number| id("warm-ids", number)).collect();
        for (floor, ids) in floor.chunks(FEW).zip(ids.chunks(1)) {
            self.floor_insert(floor).await?;
            self.floor_loop(ids).await?;
            self.floor_batch(vec![ids.to_vec()]).await?;
        }
        for recipe in recipe.chunks(FEW) {
            self.fill(recipe).await?;
            // Of both kinds, as often as the others.
            for set_based in [false, true] {
                self.recipe_process(set_based).await?;
            }
        }
        // Copies first, and then more than enough for the store to expect no more of them.
        let known = messages("single", "warm-known", FEW);
        receive(&self.single, &known).await?;
        for _ in 0..WARM {
            receive_as(&self.single, &known, Received::Duplicate).await?;
        }
        for (from, kind, inbox) in [
            (&self.single, "single", &self.single),
            (&self.set, "set", &self.set),
            (&self.other, "single", &self.single),
            (&self.other, "set", &self.set),
        ] {
            for number in 0..WARM {
                let name = format!("warm-{kind}-{}-{number}", std::ptr::eq(from, inbox));
                receive(from, &messages(kind, &name, FEW)).await?;
                if number.is_multiple_of(4) {
                    drain(inbox).await?;
                }
            }
        }
        for lot in messages("single", "warm-inline", WARM * FEW).chunks(FEW) {
            self.single.process_all(lot.to_vec()).await.map_err(text)?;
        }
        self.own_the_end_of_the_log("warm-end").await
    }

    /// Receives a few messages of every lane here and handles them, as a process does that has been running for a while:
    /// what comes next is known to come right after them, whoever has received what came before.
    async fn own_the_end_of_the_log(&self, name: &str) -> Result<(), String> {
        receive(&self.single, &messages("single", name, BATCH)).await?;
        self.drain_all().await
    }

    /// Leaves no handler anything to do, or to pass over.
    async fn drain_all(&self) -> Result<(), String> {
        drain(&self.single).await?;
        drain(&self.set).await
    }

    async fn ingest(&self, round: &mut Round) -> Result<(), String> {
        let (bare, recipe) = (rows("floor", self.count), rows("recipe", self.count));
        let stored = messages("single", "single", self.count);
        let (one_by_one, recipe_one_by_one) =
            (messages("single", "one", self.few), rows("recipe-single", self.few));
        let bare = async {
            self.step("bare insert");
            self.floor_insert(&bare).await
        };
        let own = async {
            self.step("ingest");
            receive(&self.single, &stored).await
        };
        let recipe = async {
            self.step("recipe's ingest");
            self.fill(&recipe).await
        };
        let recipe_single = async {
            self.step("recipe, one by one");
            self.recipe_one_by_one(&recipe_one_by_one).await
        };
        let own_single = async {
            self.step("one by one");
            let callers = one_by_one.chunks(self.few.div_ceil(CALLERS)).map(|own| async move {
                for message in own {
                    receive(&self.single, std::slice::from_ref(message)).await?;
                }
                Ok::<(), String>(())
            });
            try_join_all(callers).await.map(|_| ())
        };
        let (all, few) = (Count::Sent(self.count), Count::Sent(self.few));
        [
            round.floor_insert,
            round.ingest_batch,
            round.recipe_ingest_batch,
            round.recipe_ingest,
            round.ingest_single,
        ] = self
            .in_turns([
                (bare.boxed(), all),
                (own.boxed(), all),
                (recipe.boxed(), all),
                (recipe_single.boxed(), few),
                (own_single.boxed(), few),
            ])
            .await?;
        Ok(())
    }

    /// Handles what `ingest` has stored, with one statement for each message.
    async fn process(&self, round: &mut Round) -> Result<(), String> {
        // With those that came one by one.
        let stored = self.count + self.few;
        let ids: Vec<String> = (0..stored).map(|number| id("loop", number)).collect();
        let bare = async {
            self.step("bare handler loop");
            self.floor_loop(&ids).await
        };
        let own = async {
            self.step("process");
            drain(&self.single).await
        };
        let recipe = async {
            self.step("recipe's processing");
            self.recipe_process(false).await
        };
        let all = Count::Effects(stored);
        [round.floor_loop, round.process, round.recipe_process] =
            self.in_turns([(bare.boxed(), all), (own.boxed(), all), (recipe.boxed(), all)]).await?;

        receive(&self.other, &messages("single", "other", self.count)).await?;
        let others = async {
            self.step("process, received elsewhere");
            drain(&self.single).await
        };
        [round.process_others] = self.in_turns([(others.boxed(), Count::Effects(self.count))]).await?;
        Ok(())
    }

    /// The same with one statement for each batch.
    async fn process_sets(&self, round: &mut Round) -> Result<(), String> {
        self.own_the_end_of_the_log("set-before").await?;
        receive(&self.set, &messages("set", "set", self.count)).await?;
        self.fill(&rows("recipe-set", self.count)).await?;
        let ids: Vec<String> = (0..self.count).map(|number| id("set", number)).collect();
        let batches: Vec<Vec<String>> = ids.chunks(BATCH).map(<[String]>::to_vec).collect();
        let bare = async {
            self.step("bare set-based");
            self.floor_batch(batches).await
        };
        let own = async {
            self.step("process, set-based");
            drain(&self.set).await
        };
        let recipe = async {
            self.step("recipe's processing, set-based");
            self.recipe_process(true).await
        };
        let all = Count::Effects(self.count);
        [round.floor_batch, round.process_batch, round.recipe_process_batch] =
            self.in_turns([(bare.boxed(), all), (own.boxed(), all), (recipe.boxed(), all)]).await?;

        receive(&self.other, &messages("set", "other-set", self.count)).await?;
        let others = async {
            self.step("process, set-based, received elsewhere");
            drain(&self.set).await
        };
        [round.process_batch_others] = self.in_turns([(others.boxed(), all)]).await?;
        Ok(())
    }

    async fn handle_inline(&self, round: &mut Round) -> Result<(), String> {
        let lots: Vec<Vec<Message>> =
            messages("single", "inline", self.count).chunks(BATCH).map(<[Message]>::to_vec).collect();
        let own = async {
            self.step("inline");
            for lot in lots {
                let answers = self.single.process_all(lot).await.map_err(text)?;
                if let Some(other) = answers.iter().find(|answer| **answer != Processed::Done) {
                    return Err(format!("a message was answered as {other:?} instead of `Done`"));
                }
            }
            Ok(())
        };
        [round.inline] = self.in_turns([(own.boxed(), Count::Effects(self.count))]).await?;
        Ok(())
    }

    /// Last, because a store that has met copies expects more of them for a while.
    async fn ingest_duplicates(&self, round: &mut Round) -> Result<(), String> {
        let copies = messages("single", "copies", self.count);
        receive(&self.single, &copies).await?;
        let mut some = messages("single", "some", self.count);
        let every = some.iter_mut().zip(&copies).step_by(COPY_EVERY);
        every.for_each(|(message, copy)| *message = copy.clone());
        let some = async {
            self.step("some duplicates");
            for chunk in some.chunks(BATCH) {
                let received = self.single.receive(chunk).await.map_err(text)?;
                let new = received.iter().filter(|received| **received == Received::New).count();
                let expected = chunk.len() - chunk.len().div_ceil(COPY_EVERY);
                if new != expected {
                    return Err(format!("{new} messages were new instead of {expected}"));
                }
            }
            Ok(())
        };
        let all = async {
            self.step("all duplicates");
            receive_as(&self.single, &copies, Received::Duplicate).await
        };
        let bare = rows("floor-later", self.count);
        let bare = async {
            self.step("bare insert, later");
            self.floor_insert(&bare).await
        };
        let sent = Count::Sent(self.count);
        [round.floor_insert_later, round.ingest_some_duplicates] =
            self.in_turns([(bare.boxed(), sent), (some.boxed(), sent)]).await?;
        [round.ingest_duplicates] = self.in_turns([(all.boxed(), sent)]).await?;
        Ok(())
    }

    /// Takes the time of each, one after the other, and makes sure that each did its work.
    async fn in_turns<const N: usize>(
        &self,
        work: [(BoxFuture<'_, Result<(), String>>, Count); N],
    ) -> Result<[f64; N], String> {
        let mut rates = [0.0; N];
        let mut places: Vec<_> = work.into_iter().enumerate().collect();
        if self.turned {
            places.reverse();
        }
        for (place, (work, count)) in places {
            rates[place] = match count {
                Count::Sent(count) => rate(count, work).await?,
                Count::Effects(count) => {
                    let before = self.yard.effect_rows().await.map_err(text)?;
                    let rate = rate(count, work).await?;
                    let effects = self.yard.effect_rows().await.map_err(text)? - before;
                    if usize::try_from(effects) != Ok(count) {
                        return Err(format!("{count} messages had {effects} effects"));
                    }
                    rate
                }
            };
        }
        Ok(rates)
    }

    async fn floor_insert(&self, rows: &[Row]) -> Result<(), String> {
        let mut connection = self.floor.lock().await;
        for chunk in rows.chunks(BATCH) {
            self.yard.floor_insert(&mut connection, chunk).await.map_err(text)?;
        }
        Ok(())
    }

    async fn floor_loop(&self, ids: &[String]) -> Result<(), String> {
        let mut connection = self.floor.lock().await;
        for chunk in ids.chunks(BATCH) {
            self.yard.floor_loop(&mut connection, chunk).await.map_err(text)?;
        }
        Ok(())
    }

    async fn floor_batch(&self, batches: Vec<Vec<String>>) -> Result<(), String> {
        let mut connection = self.floor.lock().await;
        for batch in batches {
            self.yard.floor_batch(&mut connection, batch).await.map_err(text)?;
        }
        Ok(())
    }

    async fn fill(&self, rows: &[Row]) -> Result<(), String> {
        let mut connection = self.recipe[0].lock().await;
        for chunk in rows.chunks(BATCH) {
            self.yard.recipe_fill(&mut connection, chunk).await.map_err(text)?;
        }
        Ok(())
    }

    async fn recipe_process(&self, set_based: bool) -> Result<(), String> {
        let mut connection = self.recipe[0].lock().await;
        while self.yard.recipe_process(&mut connection, set_based).await.map_err(text)? > 0 {}
        Ok(())
    }

    async fn recipe_one_by_one(&self, rows: &[Row]) -> Result<(), String> {
        let each = rows.chunks(rows.len().div_ceil(self.recipe.len()));
        let callers = each.zip(&self.recipe).map(|(own, connection)| async move {
            let mut connection = connection.lock().await;
            for row in own {
                self.yard.recipe_ingest(&mut connection, row).await.map_err(text)?;
            }
            Ok::<(), String>(())
        });
        try_join_all(callers).await.map(|_| ())
    }
}

/// What tells that a measurement did its work.
#[derive(Debug, Clone, Copy)]
enum Count {
    /// The answers to so many messages.
    Sent(usize),
    /// So many rows of the user's.
    Effects(usize),
}

async fn drain<St: Store>(inbox: &Inbox<St>) -> Result<(), String> {
    run(inbox.clone()).drain().await.map_err(text)
}
