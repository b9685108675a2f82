//! The processes under way, and what befalls them.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use oncebox::clock::Seed;
use tokio::time::{Instant, sleep};

use super::child::Runner;
use super::feeder::Feeder;
use crate::target::{Place, Target};

/// How often runners are looked at while something is waited for.
const TICK: Duration = Duration::from_millis(50);

/// How often a runner is chosen anew that has finished its work before the blow came.
const CHOICES: usize = 20;

/// A blow falls up to so many milliseconds after its victim was chosen.
const LONGEST_AIM: u64 = 20;

/// How often effects are counted while they are waited for, unless it takes longer to count them.
const COUNTING: Duration = Duration::from_millis(10);

/// How long they are waited for: the lanes of the dead stand still for three seconds, and so would the show.
const PATIENCE_WITH_EFFECTS: Duration = Duration::from_secs(1);

/// Runners, and the feeder they get their deliveries from.
pub(crate) struct Storm<'a> {
    pub(crate) feeder: Arc<Feeder>,
    place: &'a Place,
    runners: Vec<Runner>,
    started: usize,
    patience: Duration,
    /// What went on last, and when.
    progress: ((u64, u64), Instant),
    /// As seen last by whoever counts them.
    pub(crate) effects: u64,
    pub(crate) crashes: u64,
    /// Kills that took unacknowledged deliveries with them.
    pub(crate) crashes_holding: u64,
    /// Kills with new effects since the blow before and more to come.
    pub(crate) crashes_handling: u64,
    pub(crate) pauses: u64,
}

impl<'a> Storm<'a> {
    pub(crate) fn new(feeder: Arc<Feeder>, place: &'a Place, patience: Duration) -> Self {
        Self {
            feeder,
            place,
            runners: Vec::new(),
            started: 0,
            patience,
            progress: ((0, 0), Instant::now()),
            effects: 0,
            crashes: 0,
            crashes_holding: 0,
            crashes_handling: 0,
            pauses: 0,
        }
    }

    pub(crate) fn start_runner(&mut self) -> Result<(), String> {
        self.started += 1;
        self.runners.push(Runner::start(&self.feeder, self.place, self.started)?);
        Ok(())
    }

    /// Kills and freezes runners at even distances, in turns of the deliveries that were made and of the effects that are
    /// there, so that both receiving and handling are hit. The traffic flows on meanwhile.
    ///
    /// Frozen ones go on in its midst: the last stretch is not delivered before they all do.
    pub(crate) async fn strike<T: Target>(
        &mut self,
        target: &T,
        crashes: u64,
        pauses: u64,
        seed: &Seed,
        bar: &ProgressBar,
    ) -> Result<(), String> {
        let feeder = self.feeder.clone();
        let strikes = crashes + pauses;
        let part = |all: u64, strike: u64| (all * strike / (strikes + 2)).max(1);
        let mut effects_before = 0;
        for strike in 1..=strikes {
            feeder.allow(part(feeder.planned(), strike + 1));
            let by_effects = strike.is_multiple_of(2);
            if by_effects {
                let enough = part(feeder.messages(), strike);
                self.handled(target, enough, effects_before).await?;
            } else {
                self.until(feeder.reached(part(feeder.planned(), strike))).await?;
            }
            let pauses_left = pauses - self.pauses;
            let crashes_left = crashes - self.crashes;
            let pause = pauses_left > 0 && (crashes_left == 0 || seed.next() % strikes < pauses);
            if pause {
                self.others_awake().await?;
            }
            self.effects = self.until(target.effects()).await??;
            let victim = self.one_at_work(seed).await?;
            if pause {
                self.pauses += 1;
                self.runners[victim].freeze(length_of_pause(self.pauses, seed))?;
            } else {
                // It stays in the list until it is dead, for whoever cleans up when this is dropped.
                let held = self.runners[victim].kill().await?;
                self.runners.swap_remove(victim);
                self.crashes += 1;
                self.crashes_holding += u64::from(held > 0);
                let is_amid = self.effects > effects_before && self.effects < feeder.messages();
                self.crashes_handling += u64::from(is_amid);
                self.start_runner()?;
            }
            effects_before = self.effects;
            bar.set_message(format!("{} killed", self.crashes));
        }
        while self.runners.iter().any(|runner| runner.frozen_until.is_some()) {
            self.until(sleep(TICK)).await?;
        }
        feeder.allow(u64::MAX);
        self.until(feeder.finished()).await
    }

    /// Waits until a runner that is frozen now has another one to lose its work to.
    async fn others_awake(&mut self) -> Result<(), String> {
        let enough = self.runners.len().min(2);
        while self.runners.iter().filter(|runner| runner.frozen_until.is_none()).count() < enough {
            self.until(sleep(TICK)).await?;
        }
        Ok(())
    }

    /// Waits until there are so many effects, and more than before, but not for long.
    ///
    /// Lets a little more be delivered when all that came is handled.
    async fn handled<T: Target>(&mut self, target: &T, enough: u64, before: u64) -> Result<(), String> {
        let feeder = self.feeder.clone();
        let deadline = Instant::now() + PATIENCE_WITH_EFFECTS;
        loop {
            let began = Instant::now();
            self.effects = self.until(target.effects()).await??;
            let is_behind = self.effects < feeder.stored();
            let is_enough = self.effects >= enough && (self.effects > before || !is_behind);
            if is_enough || feeder.is_finished() || began >= deadline {
                return Ok(());
            }
            if !is_behind && feeder.is_quiet() {
                feeder.keep_flowing();
            }
            self.until(sleep(began.elapsed().max(COUNTING))).await?;
        }
    }

    /// The place of a runner that has received something and not acknowledged it.
    ///
    /// Any one that is awake when the traffic is over.
    async fn one_at_work(&mut self, seed: &Seed) -> Result<usize, String> {
        let feeder = self.feeder.clone();
        for choice in 0..CHOICES {
            let at_work = {
                let flowing = async {
                    let mut tick = tokio::time::interval(TICK);
                    loop {
                        tokio::select! {
                            at_work = feeder.at_work() => return at_work,
                            _ = tick.tick() => feeder.keep_flowing(),
                        }
                    }
                };
                self.until(flowing).await?
            };
            if at_work.is_empty() {
                break;
            }
            let number = at_work[chosen(seed, at_work.len())];
            // Shorter and shorter: with little traffic they are soon done with it.
            let longest = (LONGEST_AIM >> choice).max(1);
            self.until(sleep(Duration::from_millis(seed.next() % longest))).await?;
            let place = self.runners.iter().position(|runner| runner.number == number);
            if let Some(place) = place.filter(|_| feeder.is_at_work(number)) {
                return Ok(place);
            }
        }
        self.anyone(seed).await
    }

    /// The place of a runner that is awake.
    async fn anyone(&mut self, seed: &Seed) -> Result<usize, String> {
        self.until(sleep(Duration::from_millis(seed.next() % LONGEST_AIM))).await?;
        loop {
            let awake = (0..self.runners.len()).filter(|place| self.runners[*place].frozen_until.is_none());
            let awake: Vec<usize> = awake.collect();
            if !awake.is_empty() {
                return Ok(awake[chosen(seed, awake.len())]);
            }
            self.until(sleep(TICK)).await?;
        }
    }

    /// Waits, but not for runners that have ended by themselves, which is an error of theirs, and not for ever.
    ///
    /// Frozen runners go on meanwhile when their time has come.
    pub(crate) async fn until<T>(&mut self, done: impl Future<Output = T>) -> Result<T, String> {
        tokio::pin!(done);
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                value = &mut done => return Ok(value),
                _ = tick.tick() => self.look_after()?,
            }
        }
    }

    fn look_after(&mut self) -> Result<(), String> {
        for runner in &mut self.runners {
            if let Some(status) = runner.ended() {
                return Err(format!("a runner ended by itself: {status}"));
            }
            runner.thaw_if_due()?;
        }
        let now = (self.feeder.acknowledged(), self.effects);
        // While somebody is frozen the traffic may stand still.
        let frozen = self.runners.iter().any(|runner| runner.frozen_until.is_some());
        if frozen || now != self.progress.0 {
            self.progress = (now, Instant::now());
        }
        if self.progress.1.elapsed() > self.patience {
            return Err(format!(
                "no delivery was acknowledged and no effect was added for {:?}, with {} of them made; look at the \
                 store, ask the runners why with `ONCEBOX_LOG=warn`, or wait longer with `--patience`",
                self.patience,
                self.feeder.deliveries()
            ));
        }
        Ok(())
    }

    /// Lets every runner finish what it has begun.
    pub(crate) async fn stop(&mut self) -> Result<(), String> {
        while let Some(runner) = self.runners.last_mut() {
            runner.stop(self.patience).await?;
            self.runners.pop();
        }
        Ok(())
    }

    /// Kills what is left, also what is frozen: only then can the store be removed.
    pub(crate) async fn end(&mut self) {
        for mut runner in self.runners.drain(..) {
            if let Err(error) = runner.end().await {
                // There may be no terminal any more to say it on.
                let _ = writeln!(std::io::stderr(), "oncebox: {error}");
            }
        }
    }
}

/// Every other pause is longer than the three seconds after which others take the lanes over.
fn length_of_pause(pause: u64, seed: &Seed) -> Duration {
    let shortest = if pause.is_multiple_of(2) { 500 } else { 4500 };
    Duration::from_millis(shortest + seed.next() % 2000)
}

fn chosen(seed: &Seed, count: usize) -> usize {
    usize::try_from(seed.next() % count as u64).unwrap_or(0)
}
