//! The rate at which all instances together use a counter.

use crate::limit::{Period, Timestamp};

/// The bits by which the instant of the creation is shortened.
const COARSE: u32 = 16;

/// The number of replies after which the measured rate is used unchanged. Earlier measurements are too low, because the
/// other instances have not reported their hits yet.
const WARM_UP: u8 = 4;

/// The rate at which all instances together use a counter, measured from the store's replies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageRate {
    /// When it was created, in units of 2^16 ns modulo 2^32: every 78 hours a counter is new again for one interval.
    created: u32,
    /// The hits that the last reply counted.
    used: u32,
    /// The rate in hits per nanosecond.
    rate: f32,
}

/// A reply that a rate is measured from.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredReply {
    /// The hits that it counts.
    pub(super) used: u64,
    /// The hits that this instance has taken since the last reply.
    pub(super) own: u64,
    /// The number of instances.
    pub(super) instances: u32,
    /// The sync interval.
    pub(super) interval: Period,
    /// The instant of the last reply.
    pub(super) last: Option<Timestamp>,
    pub(super) now: Timestamp,
}

// === impl UsageRate ===

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
impl UsageRate {
    /// Creates the rate of a counter that is created at `now`.
    pub(super) fn new(now: Timestamp) -> Self {
        Self { created: coarse(now), ..Self::default() }
    }

    /// Records `reply`. `replies` is the number of those before it, which the counter keeps beside its other small fields, where it
    /// takes less space. During the warm-up each of the other instances is assumed to take as many hits as this one. The rate is unchanged
    /// in a new window and while no hit is admitted.
    pub(super) fn record(&mut self, replies: &mut u8, reply: MeasuredReply) {
        let MeasuredReply { used, own, instances, interval, last, now } = reply;
        let age = u64::from(coarse(now).wrapping_sub(self.created)) << COARSE;
        let time = last.map_or(age, |last| now.since(last).as_nanos());
        // hits that were counted before the counter was created here do not belong to this time span
        let mut hits = if *replies == 0 { 0 } else { used.saturating_sub(self.used.into()) };
        if *replies < WARM_UP || age < interval.as_nanos() {
            *replies = replies.saturating_add(1);
            hits = hits.max(own.saturating_mul(instances.into()));
        }
        if time > 0 && hits > 0 {
            let rate = (hits as f64 / time as f64) as f32;
            // a higher rate applies at once: an early flush costs little, a late one admits hits above the limit
            self.rate = if rate > self.rate { rate } else { 0.75 * self.rate + 0.25 * rate };
        }
        self.used = u32::try_from(used).unwrap_or(u32::MAX);
    }

    /// Returns how long it takes until `hits` are used.
    pub(super) fn time_for(&self, hits: u64) -> Period {
        if self.rate > 0.0 {
            Period::from_nanos((hits as f64 / f64::from(self.rate)) as u64)
        } else {
            Period::MAX
        }
    }
}

/// Returns the instant in units of 2^16 ns, modulo 2^32.
#[expect(clippy::cast_possible_truncation, reason = "modulo 2^32")]
const fn coarse(at: Timestamp) -> u32 {
    (at.as_nanos() >> COARSE) as u32
}
