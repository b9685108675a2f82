//! Known ids that came with other bytes.

use jiff::Timestamp;

use crate::message::Message;

/// A known id that came with other bytes.
#[derive(Debug, Clone)]
pub struct Conflict {
    /// The message that was not accepted.
    pub message: Message,
    /// When it first came.
    pub received_at: Timestamp,
}

/// Which part of the list of conflicts is meant.
#[derive(Debug, Clone, Default)]
pub struct ConflictAsk {
    /// Only conflicts after this place in the list (for paging): what [`ConflictPage::next`] said.
    pub after: Option<ConflictPlace>,
    /// The most conflicts; 100 unless set.
    pub limit: Option<usize>,
    /// No more conflicts once those before have so many bytes of payload, so that one is always there.
    pub bytes: Option<usize>,
}

/// A part of the list of conflicts.
#[derive(Debug, Clone)]
pub struct ConflictPage {
    /// Newest first.
    pub conflicts: Vec<Conflict>,
    /// Where to go on; `None` when the list is at its end.
    pub next: Option<ConflictPlace>,
}

/// A place in the list of conflicts: when one came, its identity and its fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConflictPlace {
    /// In microseconds since 1970.
    pub received_at: i64,
    /// See [`Message::identity`].
    pub identity: [u8; 16],
    /// See [`Message::fingerprint`].
    pub fingerprint: [u8; 16],
}

impl ConflictPlace {
    /// How many bytes [`ConflictPlace::to_bytes`] gives.
    pub const BYTES: usize = 40;

    /// As bytes, for a cursor.
    ///
    /// ```
    /// use oncebox_core::admin::ConflictPlace;
    ///
    /// let place = ConflictPlace { received_at: 7, identity: [1; 16], fingerprint: [2; 16] };
    /// assert_eq!(ConflictPlace::from_bytes(&place.to_bytes()), Some(place));
    /// ```
    pub fn to_bytes(self) -> Vec<u8> {
        [&self.received_at.to_be_bytes()[..], &self.identity, &self.fingerprint].concat()
    }

    /// What [`ConflictPlace::to_bytes`] gave.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (received_at, rest) = bytes.split_first_chunk::<8>()?;
        let (identity, fingerprint) = rest.split_first_chunk::<16>()?;
        let fingerprint = fingerprint.try_into().ok()?;
        Some(Self { received_at: i64::from_be_bytes(*received_at), identity: *identity, fingerprint })
    }
}

impl ConflictAsk {
    /// The most conflicts.
    pub fn most(&self) -> usize {
        self.limit.unwrap_or(100)
    }

    /// The page of these rows. Used by stores: the rows are those that were asked for, in their order.
    pub fn page(&self, rows: Vec<(ConflictPlace, Conflict)>) -> ConflictPage {
        let bytes: usize = rows.iter().map(|(_, conflict)| conflict.message.payload.len()).sum();
        let cut = rows.len() >= self.most() || self.bytes.is_some_and(|most| bytes >= most);
        let next = rows.last().filter(|_| cut).map(|(place, _)| *place);
        ConflictPage { conflicts: rows.into_iter().map(|(_, conflict)| conflict).collect(), next }
    }
}
