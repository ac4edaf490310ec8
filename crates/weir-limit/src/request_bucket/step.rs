//! The bucket of smyte/ratelimit: whole tokens, refilled in steps.

/// The parameters of a [`StepBucket`], which are part of its identity. All are from 1 to 2^63-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepLimit {
    pub max: u64,
    pub refill: u64,
    /// The milliseconds from one step to the next.
    pub period_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRequest {
    pub limit: StepLimit,
    /// The tokens to take, up to 2^63-1; 0 only reads.
    pub take: u64,
    /// The caller's time in milliseconds since the epoch, if it is not the server's. It may go back and forth.
    pub at: Option<u64>,
    /// Whether a bucket that becomes empty, or is found empty, begins its next step at the time of this request.
    pub strict: bool,
    pub session: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepReply {
    /// The tokens before any were taken. The request is admitted if they are at least those that it takes.
    pub tokens: u64,
    /// When the session began, in milliseconds: the time of the last admitted request, or of this one if there is none.
    pub session_start: u64,
}

/// Whole tokens, refilled in steps. A request that finds too few takes those that are there. 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBucket {
    /// The tokens that it lacks; at most [`StepLimit::max`].
    taken: u64,
    /// In milliseconds since the epoch.
    stepped_at: u64,
}

// === impl StepBucket ===

impl StepBucket {
    /// Creates a bucket that lacked `taken` tokens at its last step, `stepped_at` in milliseconds since the epoch.
    pub const fn new(taken: u64, stepped_at: u64) -> Self {
        Self { taken, stepped_at }
    }

    /// Returns the tokens that it lacked at the last step, less those that were taken since.
    pub const fn taken(self) -> u64 {
        self.taken
    }

    /// Returns the time of the last step, in milliseconds since the epoch.
    pub const fn stepped_at(self) -> u64 {
        self.stepped_at
    }

    pub(super) const fn full(at: u64) -> Self {
        Self { taken: 0, stepped_at: at }
    }

    /// Nothing flows in or out if `at` is before the last step.
    pub(super) fn refilled(self, limit: &StepLimit, at: u64) -> Self {
        let steps = at.saturating_sub(self.stepped_at) / limit.period_ms;
        Self {
            taken: self.taken.min(limit.max).saturating_sub(steps.saturating_mul(limit.refill)),
            stepped_at: self.stepped_at + steps * limit.period_ms,
        }
    }

    /// Takes as many tokens as there are, and returns the tokens before.
    pub(super) fn take(&mut self, request: &StepRequest, at: u64) -> u64 {
        let limit = &request.limit;
        let refilled = self.refilled(limit, at);
        let tokens = limit.max - refilled.taken;
        if request.take > 0 {
            let taken = refilled.taken.saturating_add(request.take).min(limit.max);
            let restarts = request.strict && taken == limit.max;
            *self = Self { taken, stepped_at: if restarts { at } else { refilled.stepped_at } };
        }
        tokens
    }

    /// In milliseconds, from its last step on.
    pub(super) fn refill_time(self, limit: &StepLimit) -> u64 {
        self.taken.div_ceil(limit.refill).saturating_mul(limit.period_ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const fn request(max: u64, refill: u64, period_ms: u64, take: u64, strict: bool) -> StepRequest {
        let limit = StepLimit { max, refill, period_ms };
        StepRequest { limit, take, at: None, strict, session: false }
    }

    /// The published description of smyte/ratelimit, in plain numbers.
    fn model(bucket: &mut Option<(i128, i128)>, request: &StepRequest, at: i128) -> i128 {
        let (max, refill) = (i128::from(request.limit.max), i128::from(request.limit.refill));
        let (period, take) = (i128::from(request.limit.period_ms), i128::from(request.take));
        let (tokens, last) = bucket.unwrap_or((max, at));
        let steps = (at - last).max(0) / period;
        let (tokens, last) = ((tokens + steps * refill).min(max), last + steps * period);
        if take > 0 {
            let left = (tokens - take).max(0);
            *bucket = Some((left, if request.strict && left == 0 { at } else { last }));
        }
        tokens
    }

    proptest! {
        #[test]
        fn it_equals_the_published_model_at_any_times(
            max in 1..20_u64,
            refill in 1..25_u64,
            period in 1..50_u64,
            requests in vec((0..400_u64, 0..25_u64, any::<bool>()), 1..60),
        ) {
            let (mut bucket, mut expected) = (None::<StepBucket>, None);
            for (at, take, strict) in requests {
                let request = request(max, refill, period, take, strict);
                let mut state = bucket.unwrap_or(StepBucket::full(at));
                let tokens = state.take(&request, at);
                prop_assert_eq!(i128::from(tokens), model(&mut expected, &request, at.into()));
                bucket = bucket.map(|_| state).or((take > 0).then_some(state));
            }
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        const MOST: u64 = i64::MAX as u64;
        for (max, refill, period, take) in
            [(MOST, MOST, 1, MOST), (MOST, 1, MOST, MOST), (1, MOST, 1, MOST), (MOST, MOST, MOST, 1)]
        {
            let request = request(max, refill, period, take, true);
            let mut bucket = StepBucket::full(0);
            assert_eq!(bucket.take(&request, 0), max);
            let _ = bucket.take(&request, MOST);
            let _ = bucket.take(&request, 3);
            assert!(bucket.refill_time(&request.limit) >= 1);
        }
    }
}
