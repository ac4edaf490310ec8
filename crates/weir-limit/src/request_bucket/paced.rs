//! The bucket of redis-cell and throttlecrab: tokens that flow in evenly, the generic cell rate algorithm (ITU-T
//! I.371).

use crate::units::{NANOS_PER_SECOND, Period, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Tokens in each period, from 1 to 2^63-1.
    count: u64,
    /// The length of the period, longer than zero.
    period_nanos: u128,
}

/// The time in which a token flows in at some [`Pace`], rounded to 24 significant bits: enough to see whether the pace
/// has changed, and to convert what has flowed in until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenTime {
    /// The bits of an `f32`, in nanoseconds.
    bits: u32,
}

/// A request to take tokens from a [`PacedBucket`], or to give them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedRequest {
    /// The tokens of a full bucket; 0 admits nothing.
    pub capacity: u64,
    pub pace: Pace,
    /// The tokens to take. 0 only reads; a negative number gives back.
    pub quantity: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedReply {
    /// Whether the request was rejected. It then took nothing.
    pub limited: bool,
    /// Whole tokens that are left.
    pub remaining: u64,
    /// If limited, the time until the tokens are there if nobody takes more, in a bucket with room for them.
    pub retry_after: Period,
    pub reset_after: Period,
}

/// Tokens that flow in evenly. 16 bytes.
///
/// The taken tokens are kept, not those left, so that changed parameters apply at once: a raised capacity admits more,
/// and a lowered one begins as an empty bucket at most. The tokens that flowed in before a changed pace flowed in at
/// the earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacedBucket {
    /// The instant of the taken tokens. The time since the last whole token that has flowed in is still to come.
    as_of: Timestamp,
    /// Whole tokens that were taken and have not flowed in again.
    taken: u64,
}

// === impl Pace ===

impl Pace {
    /// Returns the pace of `count` tokens per `seconds`; none if either is not positive.
    pub fn new(count: i64, seconds: i64) -> Option<Self> {
        let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
        let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
        Some(Self { count, period_nanos: u128::from(seconds) * u128::from(NANOS_PER_SECOND) })
    }

    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the length of the period, if it is at most 584 years.
    pub fn period(&self) -> Option<Period> {
        u64::try_from(self.period_nanos).ok().map(Period::from_nanos)
    }

    fn tokens_in(&self, elapsed: Period) -> u64 {
        // 64 bits of time and 63 of tokens
        let tokens = u128::from(elapsed.as_nanos()) * u128::from(self.count) / self.period_nanos;
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// Returns how long `tokens` take to flow in, rounded up; [`Period::MAX`] if that is longer than 584 years.
    pub fn time_of(&self, tokens: u64) -> Period {
        // a product past 128 bits, divided by 63, is past 64
        let product = u128::from(tokens).saturating_mul(self.period_nanos);
        u64::try_from(product.div_ceil(self.count.into())).map_or(Period::MAX, Period::from_nanos)
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "it is rounded")]
    pub(super) fn token_time(&self) -> TokenTime {
        TokenTime { bits: ((self.period_nanos as f64 / self.count as f64) as f32).to_bits() }
    }
}

// === impl TokenTime ===

impl TokenTime {
    pub const fn from_bits(bits: u32) -> Self {
        Self { bits }
    }

    /// Returns it as the bits of an IEEE 754 number of nanoseconds, for a store.
    pub const fn bits(self) -> u32 {
        self.bits
    }

    /// Returns whether it is a time: positive and finite.
    pub fn is_valid(self) -> bool {
        self.nanos() > 0.0 && self.nanos().is_finite()
    }

    pub fn nanos(self) -> f64 {
        f32::from_bits(self.bits).into()
    }
}

// === impl PacedBucket ===

impl PacedBucket {
    pub const fn new(as_of: Timestamp, taken: u64) -> Self {
        Self { as_of, taken }
    }

    pub const fn as_of(self) -> Timestamp {
        self.as_of
    }

    /// Returns the whole tokens that it lacks at [`PacedBucket::as_of`].
    pub const fn taken(self) -> u64 {
        self.taken
    }

    /// `token` is the time of a token at the last change's pace, and follows it. A rejection changes only the pace.
    pub(super) fn decide(
        &mut self,
        token: &mut TokenTime,
        request: &PacedRequest,
        now: Timestamp,
    ) -> PacedReply {
        let (pace, capacity) = (&request.pace, request.capacity);
        let mut settled = *self;
        if self.taken > 0 && *token != pace.token_time() {
            settled = self.settle(*token, pace.token_time(), now);
        }
        // of a bucket that was larger, no more than all tokens are missing
        let current = Self { taken: settled.taken.min(capacity), ..settled }.refilled(pace, now);
        let asked = request.quantity.unsigned_abs();
        let limited = request.quantity > 0 && asked > capacity - current.taken;
        let next = match request.quantity {
            0 => current,
            quantity if quantity < 0 => Self { taken: current.taken.saturating_sub(asked), ..current },
            _ if limited => current,
            _ => Self { taken: current.taken + asked, ..current },
        };
        // one that looks, and one that is rejected at the same pace, leaves what is kept
        if request.quantity < 0 || request.quantity > 0 && !limited {
            (*self, *token) = (next, pace.token_time());
        } else if request.quantity > 0 {
            (*self, *token) = (settled, pace.token_time());
        }
        let wait = |missing: u64| current.as_of.after(pace.time_of(missing)).since(now);
        // also of what the bucket has no room for
        let missing = (u128::from(current.taken) + u128::from(asked)).saturating_sub(capacity.into());
        PacedReply {
            limited,
            remaining: capacity - next.taken,
            retry_after: if limited {
                wait(u64::try_from(missing).unwrap_or(u64::MAX))
            } else {
                Period::default()
            },
            reset_after: next.as_of.after(pace.time_of(next.taken)).since(now),
        }
    }

    /// With the whole tokens that flow in up to `now`. A clock that steps back neither adds nor removes tokens.
    fn refilled(self, pace: &Pace, now: Timestamp) -> Self {
        if self.taken == 0 {
            return Self { as_of: now.max(self.as_of), taken: 0 };
        }
        let inflow = pace.tokens_in(now.since(self.as_of));
        if inflow >= self.taken {
            return Self { as_of: now, taken: 0 };
        }
        // the time of whole tokens, rounded up, is at most the elapsed one
        Self { as_of: self.as_of.after(pace.time_of(inflow)), taken: self.taken - inflow }
    }

    /// Tokens flow in at the pace of `before`. What has flowed in of the next one counts at the pace of `after`.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is positive, and a changed pace is converted to 24 significant bits"
    )]
    pub(super) fn settle(self, before: TokenTime, after: TokenTime, now: Timestamp) -> Self {
        let inflow = now.since(self.as_of).as_nanos() as f64 / before.nanos();
        let whole = inflow.floor();
        let begun = (inflow - whole) * after.nanos();
        let taken = self.taken.saturating_sub(whole as u64);
        let as_of = Timestamp::from_nanos(now.as_nanos().saturating_sub(begun as u64));
        Self { as_of: as_of.max(self.as_of.min(now)), taken }
    }

    /// When it is full, or slightly later.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is positive, and rounded up"
    )]
    pub(crate) fn full_at(self, token: TokenTime) -> Timestamp {
        const ROUNDED_UP: f64 = 1.0 + 1.0 / (1 << 22) as f64;
        let nanos = (self.taken as f64 * token.nanos() * ROUNDED_UP).ceil();
        self.as_of.after(Period::from_nanos(nanos as u64))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn request(capacity: u64, count: i64, seconds: i64, quantity: i64) -> PacedRequest {
        PacedRequest { capacity, pace: Pace::new(count, seconds).expect("a pace"), quantity }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    #[derive(Clone, Copy, Default)]
    struct Bucket {
        bucket: PacedBucket,
        token: TokenTime,
    }

    impl Bucket {
        fn decide(&mut self, request: &PacedRequest, now: Timestamp) -> PacedReply {
            self.bucket.decide(&mut self.token, request, now)
        }
    }

    #[test]
    fn a_bucket_admits_its_capacity_then_its_pace() {
        let (mut bucket, one) = (Bucket::default(), request(16, 30, 60, 1));
        for left in (0..16).rev() {
            let reply = bucket.decide(&one, at(0));
            assert_eq!((reply.limited, reply.remaining), (false, left));
        }
        let reply = bucket.decide(&one, at(500));
        assert!(reply.limited);
        assert_eq!(
            (reply.retry_after, reply.reset_after),
            (Period::from_millis(1_500), Period::from_millis(31_500))
        );
        assert!(!bucket.decide(&one, at(2_000)).limited);
        assert!(bucket.decide(&one, at(3_999)).limited);
    }

    #[test]
    fn after_any_time_no_more_than_the_capacity_is_there() {
        for idle in [0, 9_000, 10_000, 17_999, 60_000, 1 << 40] {
            let mut bucket = Bucket::default();
            assert!(!bucket.decide(&request(10, 1, 1, 10), at(0)).limited);
            let admitted =
                (0..50).filter(|_| !bucket.decide(&request(10, 1, 1, 1), at(idle)).limited).count();
            assert_eq!(admitted as u64, (idle / 1_000).min(10), "{idle}");
        }
    }

    #[test]
    fn a_raised_limit_admits_more_at_once_and_a_change_of_plan_fills_no_bucket() {
        let mut bucket = Bucket::default();
        assert!(!bucket.decide(&request(5, 5, 86_400, 5), at(0)).limited);
        assert!(bucket.decide(&request(5, 5, 86_400, 1), at(0)).limited);
        assert_eq!(bucket.decide(&request(8, 5, 86_400, 0), at(0)).remaining, 3);
        // half a token has flowed in at the slow pace
        let half_a_token = 8_640_000;
        let fast = request(8, 100, 1, 1);
        assert_eq!(bucket.decide(&fast, at(half_a_token)).remaining, 2);
        assert_eq!(bucket.decide(&fast, at(half_a_token + 10)).remaining, 2);
    }

    #[test]
    fn a_lowered_limit_denies_for_no_longer_than_it_implies() {
        let mut bucket = Bucket::default();
        assert!(!bucket.decide(&request(100, 1, 3_600, 100), at(0)).limited);
        let lowered = request(2, 1, 10, 1);
        let reply = bucket.decide(&lowered, at(0));
        assert_eq!((reply.limited, reply.retry_after), (true, Period::from_secs(10)));
        assert!(bucket.decide(&lowered, at(9_999)).limited);
        assert!(!bucket.decide(&lowered, at(10_000)).limited);
        assert_eq!(bucket.decide(&lowered, at(30_000)).remaining, 1);
    }

    #[test]
    fn what_is_given_back_never_exceeds_the_capacity() {
        let mut bucket = Bucket::default();
        bucket.decide(&request(5, 1, 60, 4), at(0));
        assert_eq!(bucket.decide(&request(5, 1, 60, -2), at(0)).remaining, 3);
        assert_eq!(bucket.decide(&request(5, 1, 60, i64::MIN), at(0)).remaining, 5);
        assert_eq!(bucket.decide(&request(5, 1, 60, 6), at(0)).remaining, 5);
    }

    proptest! {
        /// No more than the capacity and what flows in is admitted in any time, and a promised retry holds.
        #[test]
        fn admissions_are_bounded_and_retries_hold(
            capacity in 1..20_u64,
            count in 1..2_000_i64,
            seconds in 1..100_i64,
            steps in vec((0..30_000_u64, 0..25_i64), 1..60),
        ) {
            let (mut bucket, mut now, mut taken) = (Bucket::default(), 0, 0);
            for (step, quantity) in steps {
                now += step;
                let request = request(capacity, count, seconds, quantity);
                let reply = bucket.decide(&request, at(now));
                if !reply.limited {
                    taken += quantity.unsigned_abs();
                } else if quantity.unsigned_abs() <= capacity {
                    let later = at(now).after(reply.retry_after);
                    let decide = |now| { let mut copy = bucket; copy.decide(&request, now).limited };
                    prop_assert!(!decide(later));
                    // each of two times is rounded up
                    prop_assert!(decide(Timestamp::from_nanos(later.as_nanos() - 2)) || reply.retry_after < Period::from_nanos(3));
                }
                let inflow = u128::from(now) * u128::from(count.unsigned_abs()) / (u128::from(seconds.unsigned_abs()) * 1_000);
                prop_assert!(u128::from(taken) <= u128::from(capacity) + inflow + 1);
                prop_assert!(reply.remaining <= capacity);
            }
        }

        #[test]
        fn any_numbers_are_decided(
            capacity: u64,
            requests in vec((1..i64::MAX, 1..i64::MAX, any::<i64>(), any::<u64>()), 1..20),
        ) {
            let mut bucket = Bucket::default();
            for (count, seconds, quantity, now) in requests {
                let request = PacedRequest { capacity: capacity >> (now % 64), pace: Pace::new(count, seconds).expect("a pace"), quantity };
                let reply = bucket.decide(&request, Timestamp::from_nanos(now));
                prop_assert!(reply.remaining <= request.capacity);
                let _ = bucket.bucket.full_at(bucket.token);
            }
        }
    }
}
