//! Hits of a sliding window that are counted together.

use crate::{
    tier::Tier,
    units::{Period, Timestamp},
};

/// Hits that were taken within a twelfth of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The instant of the last hit.
    pub last: Timestamp,
    pub hits: u32,
}

impl Span {
    pub(super) const fn expires_at(self, tier: &Tier) -> Timestamp {
        self.last.after(tier.period)
    }

    /// More than a period if the clock has stepped back, or if the hits are reserved.
    pub(super) fn expires_in(self, tier: &Tier, now: Timestamp) -> Period {
        self.expires_at(tier).since(now)
    }

    pub(super) fn give_back(&mut self, hits: u64) -> u64 {
        let given = u32::try_from(hits).map_or(self.hits, |hits| hits.min(self.hits));
        self.hits -= given;
        given.into()
    }
}
