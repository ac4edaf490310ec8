//! The token bucket: `requests` tokens flow in per period, up to `burst` are kept, and each hit takes one.
//!
//! Continuous refill is the generic cell rate algorithm (ITU-T I.371) in terms of tokens. Refill in steps and strict
//! buckets follow the durable rate limiter of Smyte.

use std::num::NonZeroU16;

use super::{
    change::CountChange,
    refill::{TOKEN, inflow, most_inflow, steps, time_for, time_of_steps},
    state::{AlgorithmState, Availability, Probe},
};
use crate::{
    tier::Tier,
    units::{Hits, Period, Timestamp},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Tokens in a full bucket, 1 to 2^32-1.
    pub burst: u32,
    pub refill: Refill,
    /// A rejected request restarts the refill clock, so a caller that keeps trying keeps being rejected.
    pub strict: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refill {
    /// Evenly, one every `period / requests`: at most `burst + requests * t / period` hits in any time `t`.
    #[default]
    Continuous,
    /// `requests` of them at the end of each period, counted from the first hit. At most `burst + requests * (floor(t /
    /// period) + 1)` hits are admitted in any time `t`: even the shortest may contain a step.
    Step,
    /// As [`Refill::Continuous`], but one bucket for all periods: the period comes with the request, like `requests`.
    AnyPace,
    /// As [`Refill::Continuous`], but over so many periods: an instance's part, which uses the whole bucket's counter.
    Part(NonZeroU16),
}

/// The tokens that a bucket lacks at an instant. 16 bytes. The taken tokens are kept, not those left, so that a changed
/// `burst` applies immediately: raised, the extra tokens are available; lowered below the taken tokens, the bucket is
/// empty.
///
/// A bucket can be in debt, by at most one burst more than it holds: hits that several instances admitted with the same
/// token are missing later, so that the long-run rate holds. A mark distinguishes a debt from tokens that were taken
/// before `burst` was lowered, which need not be waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBucket {
    /// The instant of the taken tokens; with steps, the instant of the last step.
    as_of: Timestamp,
    /// The taken tokens in units of 2^-31 tokens, rounded up: a hit may cost one unit too much, never too little. The
    /// highest bit, [`DEBT`], is set if they may exceed the burst.
    taken_and_debt: u64,
}

const DEBT: u64 = 1 << 63;

// === impl Bucket ===

impl Bucket {
    /// Creates the parameters of a bucket that is refilled evenly, and not strict.
    pub const fn of(burst: u32) -> Self {
        Self { burst, refill: Refill::Continuous, strict: false }
    }
}

// === impl TokenBucket ===

impl TokenBucket {
    /// Creates a bucket; `taken` is in units of 2^-31 tokens, less than 2^63, and `in_debt` if it exceeds the burst.
    pub const fn new(as_of: Timestamp, taken: u64, in_debt: bool) -> Self {
        let taken = if taken < DEBT { taken } else { DEBT - 1 };
        Self { as_of, taken_and_debt: if in_debt { taken | DEBT } else { taken } }
    }

    fn of(bucket: Bucket, as_of: Timestamp, taken: u64) -> Self {
        Self::new(as_of, taken, taken > full(bucket))
    }

    /// Returns the instant of [`TokenBucket::taken`]; with steps, the instant of the last step.
    pub const fn as_of(self) -> Timestamp {
        self.as_of
    }

    /// Returns the tokens that the bucket lacks at [`TokenBucket::as_of`], in units of 2^-31 tokens.
    pub const fn taken(self) -> u64 {
        self.taken_and_debt & !DEBT
    }

    /// Returns whether hits that were admitted elsewhere exceed the burst.
    pub const fn is_in_debt(self) -> bool {
        self.taken_and_debt & DEBT != 0
    }

    /// The taken tokens, at most the bucket's size, or with a debt one more burst: at most 2^32-1 tokens.
    fn capped(self, bucket: Bucket) -> u64 {
        self.taken().min(if self.is_in_debt() { most_taken(bucket) } else { full(bucket) })
    }

    #[inline(never)]
    fn at(self, tier: &Tier, now: Timestamp) -> Self {
        let bucket = tier.bucket();
        let capped = self.capped(bucket);
        // a clock that steps back neither adds nor removes tokens
        let elapsed = now.since(self.as_of);
        let (credited, inflow) = match bucket.refill {
            _ if capped == 0 || elapsed == Period::default() => (elapsed, 0),
            Refill::Continuous | Refill::AnyPace | Refill::Part(_) => {
                (elapsed, inflow(tier, elapsed, capped))
            }
            Refill::Step => steps(tier, elapsed, capped),
        };
        Self::of(bucket, self.as_of.after(credited), capped - inflow)
    }

    pub(super) fn is_idle(self, tier: &Tier, now: Timestamp) -> bool {
        self.idle_at(tier) <= now
    }

    /// When it is full; with steps one period later, since until then the state says when the next step is due.
    pub(super) fn idle_at(self, tier: &Tier) -> Timestamp {
        let full = self.ready_at(tier, 0);
        match tier.bucket().refill {
            Refill::Step if self.taken() > 0 => full.after(tier.period),
            _ => full,
        }
    }

    fn return_tokens(&mut self, tier: &Tier, now: Timestamp, tokens: u64) {
        let refilled = self.at(tier, now);
        let left = refilled.taken().saturating_sub(tokens);
        if left != refilled.taken() {
            *self = Self::of(tier.bucket(), refilled.as_of, left);
        }
    }

    /// When at most `room` is taken if nobody takes more. Computed from the stored state: rounding of the refilled one
    /// would make the reported wait differ from the actual one.
    fn ready_at(self, tier: &Tier, room: u64) -> Timestamp {
        self.time_until(tier, room).map_or(Timestamp::default(), |time| self.as_of.after(time))
    }

    fn ready_in(self, tier: &Tier, room: u64, now: Timestamp) -> Period {
        self.time_until(tier, room).map_or(Period::default(), |time| self.as_of.after(time).since(now))
    }

    /// From the instant of the state; none if no more than `room` is taken then.
    fn time_until(self, tier: &Tier, room: u64) -> Option<Period> {
        let bucket = tier.bucket();
        let needed = self.capped(bucket).saturating_sub(room);
        (needed > 0).then(|| match bucket.refill {
            Refill::Continuous | Refill::AnyPace | Refill::Part(_) => time_for(tier, needed),
            Refill::Step => time_of_steps(tier, needed),
        })
    }
}

/// In units of 2^-31 tokens: its burst, and another one of debt.
fn most_taken(bucket: Bucket) -> u64 {
    u64::from(bucket.burst.saturating_mul(2)) * TOKEN
}

/// In units of 2^-31 tokens.
fn full(bucket: Bucket) -> u64 {
    u64::from(bucket.burst) * TOKEN
}

/// The largest `taken` at which `hits` fit; none if they never do.
fn room_for(bucket: Bucket, hits: Hits) -> Option<u64> {
    let room = u64::from(bucket.burst).checked_sub(hits.0)?;
    Some(room * TOKEN)
}

impl AlgorithmState for TokenBucket {
    /// Returns a bucket that has been full since the epoch, whose clock starts with the first hit.
    fn unused(_tier: &Tier, _now: Timestamp) -> Self {
        Self::default()
    }

    fn probe(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Probe {
        let taken = self.at(tier, now).taken();
        let room = room_for(tier.bucket(), hits);
        Probe {
            fits: hits == Hits(0) || room.is_some_and(|room| taken <= room),
            used: Hits(taken.div_ceil(TOKEN)),
        }
    }

    fn take(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        if hits > Hits(0) {
            let (bucket, refilled) = (tier.bucket(), self.at(tier, now));
            let sum = refilled.taken().saturating_add(hits.0.saturating_mul(TOKEN)).min(most_taken(bucket));
            *self = Self::of(bucket, refilled.as_of, sum);
        }
    }

    fn reject(&mut self, tier: &Tier, now: Timestamp) {
        let bucket = tier.bucket();
        if bucket.strict && now > self.as_of && !self.is_idle(tier, now) {
            // whole refilled tokens stay; the fraction of the next token is lost
            let refilled = self.capped(bucket) - self.at(tier, now).taken();
            *self = Self::of(bucket, now, self.capped(bucket) - refilled / TOKEN * TOKEN);
        }
    }

    fn give_back(&mut self, tier: &Tier, now: Timestamp, hits: Hits) {
        self.return_tokens(tier, now, hits.0.saturating_mul(TOKEN));
    }

    /// Less the tokens that have flowed in since `taken_at`, which have refilled the bucket already.
    fn put_back(&mut self, tier: &Tier, now: Timestamp, taken_at: Timestamp, hits: Hits) {
        let tokens = hits.0.saturating_mul(TOKEN);
        self.return_tokens(tier, now, tokens - most_inflow(tier, now.since(taken_at), tokens));
    }

    /// Takes the tokens at `at`, or at the instant of the state if that is later. The bucket may be in debt afterwards.
    fn add(&mut self, tier: &Tier, at: Timestamp, change: CountChange, _now: Timestamp) {
        let refilled = self.at(tier, at);
        let taken = refilled.taken();
        let tokens = change.hits.unsigned_abs().saturating_mul(TOKEN);
        let sum = if change.hits < 0 { taken.saturating_sub(tokens) } else { taken.saturating_add(tokens) };
        let changed = sum.max(change.floor.saturating_mul(TOKEN)).min(most_taken(tier.bucket()));
        if changed != taken {
            *self = Self::of(tier.bucket(), refilled.as_of, changed);
        }
    }

    fn availability(&self, tier: &Tier, now: Timestamp) -> Availability {
        let left = full(tier.bucket()).saturating_sub(self.at(tier, now).taken()) / TOKEN;
        Availability {
            remaining: u32::try_from(left).unwrap_or(u32::MAX),
            reset: self.ready_in(tier, 0, now),
        }
    }

    fn wait(&self, tier: &Tier, now: Timestamp, hits: Hits) -> Period {
        if hits == Hits(0) {
            return Period::default();
        }
        let room = room_for(tier.bucket(), hits).unwrap_or(0);
        self.ready_in(tier, room, now)
    }

    fn used(&self) -> Hits {
        Hits(self.taken().div_ceil(TOKEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(requests: u32, seconds: u64, bucket: Bucket) -> Tier {
        Tier::token_bucket(requests, Period::from_secs(seconds), bucket)
    }

    const fn bucket(burst: u32, refill: Refill, strict: bool) -> Bucket {
        Bucket { burst, refill, strict }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn take(state: &mut TokenBucket, tier: &Tier, now: Timestamp, hits: u64) -> bool {
        let admits = state.probe(tier, now, Hits(hits)).fits;
        if admits {
            state.take(tier, now, Hits(hits));
        } else {
            state.reject(tier, now);
        }
        admits
    }

    #[test]
    fn a_bucket_admits_its_burst_then_its_rate() {
        let tier = tier(2, 1, bucket(5, Refill::Continuous, false));
        let mut state = TokenBucket::unused(&tier, at(0));
        assert!((0..5).all(|_| take(&mut state, &tier, at(0), 1)));
        assert!(!take(&mut state, &tier, at(499), 1));
        assert!(take(&mut state, &tier, at(500), 1));
        assert_eq!(state.wait(&tier, at(500), Hits(3)), Period::from_millis(1_500));
    }

    #[test]
    fn a_step_refills_all_its_tokens_at_the_end_of_its_period() {
        let tier = tier(3, 10, bucket(5, Refill::Step, false));
        let mut state = TokenBucket::unused(&tier, at(1_000));
        assert!(take(&mut state, &tier, at(1_000), 5));
        assert!(!take(&mut state, &tier, at(10_999), 1));
        assert_eq!(state.wait(&tier, at(10_999), Hits(1)), Period::from_millis(1));
        assert_eq!(state.wait(&tier, at(10_999), Hits(4)), Period::from_millis(10_001));
        assert!(take(&mut state, &tier, at(11_500), 3));
        // the next step is due ten seconds after the last one, not after the last hit
        assert!(!take(&mut state, &tier, at(20_999), 1));
        assert!(take(&mut state, &tier, at(21_000), 1));
    }

    #[test]
    fn a_strict_bucket_keeps_rejecting_a_caller_that_keeps_trying() {
        for refill in [Refill::Continuous, Refill::Step] {
            let tier = tier(1, 10, bucket(1, refill, true));
            let mut state = TokenBucket::unused(&tier, at(0));
            assert!(take(&mut state, &tier, at(0), 1));
            for seconds in (5..100).step_by(5) {
                assert!(!take(&mut state, &tier, at(seconds * 1_000), 1), "{refill:?} at {seconds}");
            }
            assert_eq!(state.wait(&tier, at(95_000), Hits(1)), Period::from_secs(10));
            assert!(take(&mut state, &tier, at(105_000), 1), "{refill:?}");
        }
    }

    #[test]
    fn a_strict_rejection_keeps_whole_refilled_tokens() {
        let tier = tier(1, 1, bucket(10, Refill::Continuous, true));
        let mut state = TokenBucket::unused(&tier, at(0));
        assert!(take(&mut state, &tier, at(0), 10));
        assert!(!take(&mut state, &tier, at(3_900), 5));
        assert_eq!(state.availability(&tier, at(3_900)).remaining, 3);
        assert!(!take(&mut state, &tier, at(4_800), 4));
        assert!(take(&mut state, &tier, at(5_800), 4));
    }

    #[test]
    fn a_rejected_request_takes_no_tokens() {
        let tier = tier(1, 1, bucket(10, Refill::Continuous, false));
        let mut state = TokenBucket::unused(&tier, at(0));
        assert!(take(&mut state, &tier, at(0), 8));
        assert!(!take(&mut state, &tier, at(0), 3));
        assert!(take(&mut state, &tier, at(0), 2));
    }

    #[test]
    fn a_clock_that_steps_back_adds_no_tokens() {
        let tier = tier(1, 1, bucket(1, Refill::Continuous, false));
        let mut state = TokenBucket::unused(&tier, at(10_000));
        assert!(take(&mut state, &tier, at(10_000), 1));
        assert!(!take(&mut state, &tier, at(2_000), 1));
        // and the wait lasts until the clock is there again
        assert_eq!(state.wait(&tier, at(9_000), Hits(1)), Period::from_secs(2));
        assert!(take(&mut state, &tier, at(11_000), 1));
    }

    #[test]
    fn a_changed_burst_applies_immediately() {
        let with_burst = |burst| tier(10, 1, bucket(burst, Refill::Continuous, false));
        let mut state = TokenBucket::unused(&with_burst(10), at(0));
        state.take(&with_burst(10), at(0), Hits(8));
        assert_eq!(state.availability(&with_burst(100), at(0)).remaining, 92);
        assert_eq!(state.availability(&with_burst(9), at(0)).remaining, 1);
        // lowered below the taken tokens: the new bucket is empty, not in debt
        assert_eq!(state.availability(&with_burst(3), at(0)).remaining, 0);
        assert_eq!(state.wait(&with_burst(3), at(0), Hits(3)), Period::from_millis(300));
        // a debt stays one, by at most one burst of the new size
        state.add(&with_burst(10), at(0), CountChange::of(4), at(0));
        assert_eq!(state.wait(&with_burst(11), at(0), Hits(1)), Period::from_millis(200));
        assert_eq!(state.wait(&with_burst(3), at(0), Hits(3)), Period::from_millis(600));
    }

    #[test]
    fn hits_admitted_elsewhere_take_a_bucket_into_debt_by_at_most_one_burst() {
        let tier = tier(10, 1, bucket(5, Refill::Continuous, false));
        let mut state = TokenBucket::unused(&tier, at(0));
        state.add(&tier, at(1_000), CountChange::of(8), at(1_000));
        assert_eq!(state.availability(&tier, at(1_000)).remaining, 0);
        assert_eq!(state.wait(&tier, at(1_000), Hits(1)), Period::from_millis(400));
        state.add(&tier, at(1_000), CountChange::of(100), at(1_000));
        assert_eq!(state.wait(&tier, at(1_000), Hits(1)), Period::from_millis(600));
        state.add(&tier, at(1_000), CountChange::of(-7), at(1_000));
        assert_eq!(state.availability(&tier, at(1_000)).remaining, 2);
        // so do hits that were rejected, and counted all the same
        let mut state = TokenBucket::unused(&tier, at(1_000));
        state.take(&tier, at(1_000), Hits(8));
        assert_eq!(state.wait(&tier, at(1_000), Hits(1)), Period::from_millis(400));
    }

    #[test]
    fn hits_of_the_past_are_refilled_since() {
        let tier = tier(10, 1, bucket(5, Refill::Continuous, false));
        let mut state = TokenBucket::unused(&tier, at(0));
        state.add(&tier, at(1_000), CountChange::of(5), at(1_400));
        assert_eq!(state.availability(&tier, at(1_400)).remaining, 4);
        // an instant before the last hit: the tokens are missing as of the last hit
        state.take(&tier, at(1_400), Hits(1));
        state.add(&tier, at(1_200), CountChange::of(2), at(1_400));
        assert_eq!(state.availability(&tier, at(1_400)).remaining, 1);
        state.add(&tier, at(1_400), CountChange { hits: -9, floor: 1 }, at(1_400));
        assert_eq!(state.availability(&tier, at(1_400)).remaining, 4);
    }

    #[test]
    fn steps_are_counted_from_the_first_hit_of_a_full_bucket() {
        let tier = tier(3, 10, bucket(5, Refill::Step, true));
        let mut state = TokenBucket::unused(&tier, at(0));
        // neither a check nor a request that never fits starts the clock
        assert!(take(&mut state, &tier, at(1_000), 0) && !take(&mut state, &tier, at(2_000), 6));
        assert!(take(&mut state, &tier, at(5_000), 4));
        assert!(!take(&mut state, &tier, at(14_999), 4));
        state.take(&tier, at(100_000), Hits(5));
        assert_eq!(state.wait(&tier, at(100_000), Hits(1)), Period::from_secs(10));
        state.add(&tier, at(203_000), CountChange::of(5), at(204_000));
        assert_eq!(state.wait(&tier, at(204_000), Hits(1)), Period::from_secs(9));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        for refill in [Refill::Continuous, Refill::Step] {
            let tier = tier(u32::MAX, 365 * 86_400, bucket(u32::MAX, refill, true));
            let last = Timestamp::from_nanos(u64::MAX);
            let mut state = TokenBucket::unused(&tier, at(0));
            assert!(take(&mut state, &tier, at(0), u64::from(u32::MAX)));
            assert!(!take(&mut state, &tier, at(0), u64::MAX));
            state.availability(&tier, last);
            state.give_back(&tier, last, Hits(u64::MAX));
            assert_eq!(state.availability(&tier, last).remaining, u32::MAX);
        }
    }
}
