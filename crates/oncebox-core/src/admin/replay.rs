//! A replay of many dead letters as a thing of its own: it has a rate, shows how far it is and can be cancelled.

use jiff::Timestamp;

use super::DeliveryFilter;
use crate::error::Error;
use crate::store::DeliveryId;

/// The number of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplayId(pub i64);

/// A replay to start.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Which dead letters.
    pub filter: DeliveryFilter,
    /// The most letters in a second; `None`: as fast as it goes.
    pub rate: Option<u32>,
    /// Who asked for it.
    pub actor: String,
}

/// Where a replay stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplayState {
    /// More letters are to come.
    Running,
    /// Every letter that matched when it started was looked at once.
    Done,
    /// Stopped by a person; what was replayed stays replayed.
    Cancelled,
    /// Another version wrote what this one cannot read: it is left alone, and can be cancelled.
    Unreadable,
}

impl ReplayState {
    /// The word for it, as commands and tables show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Unreadable => "unreadable",
        }
    }
}

/// How fast a replay may go, by the database's clock in microseconds. For stores.
///
/// What was not used in the last second is lost, so that a replay whose process stood still does not make up for it.
///
/// ```
/// use oncebox_core::admin::Pace;
///
/// let started = 0;
/// let pace = Pace::new(Some(10), started, 300_000);
/// assert_eq!(pace.allowed(), 3);
/// assert_eq!(Pace::new(Some(10), pace.after(2), 300_000).allowed(), 1);
/// assert_eq!(Pace::new(Some(10), started, 60_000_000).allowed(), 10);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    rate: Option<u32>,
    paid_at: i64,
    now: i64,
}

const SECOND: i64 = 1_000_000;

impl Pace {
    /// At this rate, with everything up to `paid_at` used up.
    pub fn new(rate: Option<u32>, paid_at: i64, now: i64) -> Self {
        // A time to come was written before the clock was set back.
        let paid_at = if paid_at > now.saturating_add(SECOND) { now } else { paid_at };
        Self { rate, paid_at: paid_at.max(now.saturating_sub(SECOND)), now }
    }

    /// How many letters may be replayed now.
    pub fn allowed(self) -> u64 {
        match self.rate {
            None => u64::MAX,
            Some(rate) => {
                let micros = u64::try_from(self.now - self.paid_at).unwrap_or(0);
                micros * u64::from(rate) / SECOND.unsigned_abs()
            }
        }
    }

    /// Up to when the rate is used up after so many letters.
    pub fn after(self, letters: u64) -> i64 {
        let Some(rate) = self.rate else { return self.now };
        let micros = letters.saturating_mul(SECOND.unsigned_abs()).div_ceil(u64::from(rate.max(1)));
        self.paid_at.saturating_add(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

impl Replay {
    /// Refuses a rate of zero, with which it would never end.
    pub fn check(&self) -> Result<(), Error> {
        if self.rate == Some(0) {
            return Err(Error::invalid(
                "a replay has a rate of 0 letters a second; give it at least 1, or none to go as fast as it goes",
            ));
        }
        Ok(())
    }
}

impl ReplayState {
    /// The number stores keep for it; [`ReplayState::Unreadable`] is never written.
    pub fn to_stored(self) -> i16 {
        match self {
            Self::Running => 0,
            Self::Done => 1,
            Self::Cancelled => 2,
            Self::Unreadable => i16::MAX,
        }
    }

    /// The state of that number; one that is not known cannot be read.
    pub fn from_stored(number: i16) -> Self {
        let known = [Self::Running, Self::Done, Self::Cancelled];
        known.into_iter().find(|state| state.to_stored() == number).unwrap_or(Self::Unreadable)
    }
}

/// A replay and how far it is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReplayInfo {
    /// Its number.
    pub id: ReplayId,
    /// What was asked for.
    pub replay: Replay,
    /// Where it stands.
    pub state: ReplayState,
    /// Letters that matched when it started, counted up to 100,000.
    pub matched: u64,
    /// Letters made to wait again so far.
    pub replayed: u64,
    /// When it started.
    pub started_at: Timestamp,
    /// When it was done or cancelled.
    pub ended_at: Option<Timestamp>,
}

/// A replay as the row of a store has it; times in microseconds since 1970.
#[derive(Debug)]
pub struct StoredReplay<'a> {
    /// Its number.
    pub id: i64,
    /// What [`DeliveryFilter::to_stored`] wrote.
    pub filter: &'a str,
    /// The most letters in a second.
    pub rate: Option<i64>,
    /// Who asked for it.
    pub actor: String,
    /// What [`ReplayState::to_stored`] wrote.
    pub state: i16,
    /// Letters that matched when it started.
    pub matched: u64,
    /// Letters made to wait again so far.
    pub replayed: u64,
    /// When it started.
    pub started_at: i64,
    /// When it was done or cancelled.
    pub ended_at: Option<i64>,
}

impl StoredReplay<'_> {
    /// The replay. One that runs and that this version does not understand is [`ReplayState::Unreadable`], so that the
    /// others can still be listed and stepped; its filter matches nothing.
    ///
    /// ```
    /// use oncebox_core::admin::{ReplayState, StoredReplay};
    ///
    /// let row = |filter| StoredReplay {
    ///     id: 1,
    ///     filter,
    ///     rate: None,
    ///     actor: "ann".to_owned(),
    ///     state: 0,
    ///     matched: 7,
    ///     replayed: 0,
    ///     started_at: 0,
    ///     ended_at: None,
    /// };
    /// assert_eq!(row(r#"{"handler":"charge"}"#).read().state, ReplayState::Running);
    /// assert_eq!(row(r#"{"colour":"red"}"#).read().state, ReplayState::Unreadable);
    /// ```
    pub fn read(self) -> ReplayInfo {
        let filter = DeliveryFilter::from_stored(self.filter).ok();
        let rate = self.rate.map(u32::try_from).transpose().ok();
        let time = |micros: i64| Timestamp::from_microsecond(micros).ok();
        let (started_at, ended_at) = (time(self.started_at), self.ended_at.map(time));
        let understood = filter.is_some() && rate.is_some() && started_at.is_some() && ended_at != Some(None);
        let state = match ReplayState::from_stored(self.state) {
            ReplayState::Running if !understood => ReplayState::Unreadable,
            state => state,
        };
        let nothing = || DeliveryFilter { deliveries: vec![DeliveryId(-1)], ..DeliveryFilter::default() };
        ReplayInfo {
            id: ReplayId(self.id),
            replay: Replay {
                filter: filter.unwrap_or_else(nothing),
                rate: rate.flatten(),
                actor: self.actor,
            },
            state,
            matched: self.matched,
            replayed: self.replayed,
            started_at: started_at.unwrap_or(Timestamp::UNIX_EPOCH),
            ended_at: ended_at.flatten(),
        }
    }
}
