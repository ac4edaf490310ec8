//! Requests in flight: their names, and a rule's limit on them. `docs/design/in-flight.md` has the rules.

use std::fmt;

use super::{
    compiled_rule::CompiledRule,
    decision::{Basis, Direction},
    descriptor::Entry,
    key::CounterKey,
    matched::{LimitCheck, RuleRef},
    units::{Hits, Period, Timestamp},
};

/// The key of the entry whose value is the name of an admitted request.
pub const IN_FLIGHT: &str = "in_flight";

/// The value of such an entry that asks whether a request could begin, and begins none.
pub const CHECK: &str = "check";

/// A rule's limit on requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The most requests at once, at most [`InFlight::MAX`].
    pub most: u32,
    /// The age at which a request is given up: its place is free, although its end has not arrived.
    pub give_up_after: Period,
}

/// A descriptor whose requests have places: its rule limits those in flight, or remembers what they have reserved.
#[derive(Clone, Copy, Debug)]
pub struct PlaceCheck<'a> {
    /// The rule.
    pub rule: &'a CompiledRule,
    /// Names the counter in stores that use names, together with `entries`.
    pub domain: &'a str,
    /// The entries of the descriptor.
    pub entries: &'a [Entry<'a>],
    /// Identifies the counter within this process.
    pub key: CounterKey,
    /// The limit: that of the rule, or that of the request with the age of the rule.
    pub limit: InFlight,
    /// What the descriptor asks for.
    pub ask: PlaceAsk,
    /// The hits that the request would reserve beside its own.
    pub reserved: Hits,
}

/// What a descriptor asks of a limit on requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceAsk {
    /// A place, if one is free.
    Take,
    /// Whether a place is free.
    Look,
    /// Nothing: hits are given back without a name.
    Nothing,
    /// The end of the newest request: the hits are a cost without a name.
    Close,
}

/// The decision on a [`PlaceCheck`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceDecision {
    /// Whether no place was free.
    pub over: bool,
    /// The places that others had.
    pub before: u32,
    /// What it was made from.
    pub basis: Basis,
}

/// Hits that a running request has reserved beside its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedHits {
    /// Their number.
    pub hits: Hits,
    /// When they were counted, in whole milliseconds of the clock of whoever keeps the place: that of its name.
    pub start: Timestamp,
}

/// The name of an admitted request: when it began, in milliseconds of the store's clock (48 bits), flags (8 bits), the
/// instance that admitted it and a number that this instance gives once (40 bits), big-endian. So names sort by age.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceName([u8; PlaceName::LEN]);

// === impl InFlight ===

impl InFlight {
    /// The greatest limit.
    pub const MAX: u32 = 100_000;

    /// The `most` of a rule whose places only remember what requests have reserved: none is refused.
    pub const UNLIMITED: u32 = u32::MAX;

    /// Returns whether a place may be refused.
    pub const fn is_limited(&self) -> bool {
        self.most != Self::UNLIMITED
    }

    /// [`InFlight::give_up_after`] of rules that name none.
    pub const GIVE_UP_AFTER: Period = Period::from_secs(600);

    /// The range of [`InFlight::give_up_after`].
    pub const AGES: std::ops::RangeInclusive<Period> = Period::from_secs(1)..=Period::from_secs(7 * 86_400);
}

/// Formats the limit, such as `4 requests in flight, given up after 10m`.
impl fmt::Display for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.most == 1 { "" } else { "s" };
        write!(f, "{} request{plural} in flight, given up after {}", self.most, self.give_up_after)
    }
}

// === impl PlaceCheck ===

impl PlaceCheck<'_> {
    /// Returns the check of the same counter for a hit.
    pub const fn as_limit_check(&self) -> LimitCheck<'_> {
        let (rule, direction) = (RuleRef::Compiled(self.rule), Direction::Take);
        let Self { domain, entries, key, .. } = *self;
        LimitCheck { rule, domain, entries, key, pool: None, hits: Hits(1), direction, settles: false }
    }

    /// Returns the check of the tiers beside it that counts `hits` of a cost.
    pub fn as_cost(&self, hits: Hits) -> LimitCheck<'_> {
        let key = self.key.of_policy(self.rule.rule.limit.over_limit_policy());
        LimitCheck { key, hits, settles: true, ..self.as_limit_check() }
    }

    /// Returns whether its rule limits requests in flight.
    pub const fn is_limited(&self) -> bool {
        self.limit.is_limited()
    }

    /// Returns whether a refusal rejects the request: neither in shadow mode nor for a quota, which others may admit.
    pub fn rejects(&self, all_quotas: bool) -> bool {
        !(all_quotas || self.rule.shadow_mode || self.rule.quota_mode)
    }
}

// === impl PlaceDecision ===

impl PlaceDecision {
    /// Returns the places that are left of `most`, if the request has the one that it `takes`.
    pub const fn left(&self, most: u32, takes: bool) -> u32 {
        most.saturating_sub(self.before).saturating_sub(if takes && !self.over { 1 } else { 0 })
    }
}

// === impl PlaceName ===

impl PlaceName {
    /// The length in bytes.
    pub const LEN: usize = 12;

    /// The bits of [`PlaceName::new`]'s `serial` that count.
    pub const SERIAL_BITS: u32 = 40;

    /// The name of no place: that of a request which has none, and whose cost counts in full.
    pub const NONE: Self = Self([0; Self::LEN]);

    const WITHOUT_STORE: u8 = 1;

    /// Creates the name of a request that begins at `start`. `serial` has [`PlaceName::SERIAL_BITS`] bits.
    pub fn new(start: Timestamp, serial: u64, is_without_store: bool) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[..6].copy_from_slice(&(start.as_nanos() / 1_000_000).to_be_bytes()[2..]);
        bytes[6] = if is_without_store { Self::WITHOUT_STORE } else { 0 };
        bytes[7..].copy_from_slice(&serial.to_be_bytes()[3..]);
        Self(bytes)
    }

    /// Returns the name with these bytes, if they are as many as a name has.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns its bytes.
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns when the request began, in whole milliseconds.
    pub fn start(&self) -> Timestamp {
        let mut millis = [0; 8];
        millis[2..].copy_from_slice(&self.0[..6]);
        Timestamp::from_nanos(u64::from_be_bytes(millis).saturating_mul(1_000_000))
    }

    /// Returns whether the instance admitted it without the shared store.
    pub const fn is_without_store(&self) -> bool {
        self.0[6] & Self::WITHOUT_STORE != 0
    }

    /// Returns the same name, of a request that an instance admitted without the shared store.
    pub const fn by_fallback(mut self) -> Self {
        self.0[6] |= Self::WITHOUT_STORE;
        self
    }

    /// Returns the name of its place, which stays the same whatever becomes known of the request.
    pub const fn without_flags(mut self) -> Self {
        self.0[6] = 0;
        self
    }

    /// Returns the bits of the instance and its number.
    pub fn serial(&self) -> u64 {
        let mut serial = [0; 8];
        serial[3..].copy_from_slice(&self.0[7..]);
        u64::from_be_bytes(serial)
    }
}

impl fmt::Debug for PlaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlaceName({}, {:x})", self.start().as_nanos() / 1_000_000, self.serial())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_what_it_was_made_of_and_sorts_by_age() {
        let of =
            |millis: u64, serial| PlaceName::new(Timestamp::from_nanos(millis * 1_000_000), serial, false);
        let name = of(1_700_000_000_123, 0x12_3456_789a);
        assert_eq!(name.start(), Timestamp::from_nanos(1_700_000_000_123_000_000));
        assert_eq!((name.serial(), name.is_without_store()), (0x12_3456_789a, false));
        assert_eq!(PlaceName::from_bytes(name.bytes()), Some(name));
        assert!(name < of(1_700_000_000_124, 0) && PlaceName::from_bytes(&[0; 11]).is_none());
        let fallback = PlaceName::new(Timestamp::from_secs(1), 7, true);
        assert!(fallback.is_without_store() && !fallback.without_flags().is_without_store());
        assert_eq!(fallback.without_flags().by_fallback(), fallback);
    }
}
