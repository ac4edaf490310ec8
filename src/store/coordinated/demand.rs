//! How much of a counter is asked for.

use crate::limit::{Period, Timestamp};

/// The shortest time over which a rate is taken.
const SPELL: Period = Period::from_millis(20);

/// Hits a second, lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    since: Timestamp,
    hits: u64,
    /// Of the spells before, in hits a nanosecond: half of it from the last, a quarter from the one before, and so on.
    rate: f64,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
impl Demand {
    /// Notes that `hits` were asked for.
    pub(super) fn asked(&mut self, hits: u64, now: Timestamp) {
        let spell = now.since(self.since);
        if spell >= SPELL {
            let rate = self.hits as f64 / spell.as_nanos() as f64;
            // after a pause, what was before says nothing
            let weight = if spell.as_nanos() > 50 * SPELL.as_nanos() { 0.0 } else { 0.5 };
            self.rate = self.rate * weight + rate * (1.0 - weight);
            (self.since, self.hits) = (now, 0);
        }
        self.hits = self.hits.saturating_add(hits);
    }

    /// Hits that are likely to be asked for in `time` from now on.
    pub(super) fn in_the_next(&self, time: Period) -> u64 {
        (self.rate * time.as_nanos() as f64).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_rate() {
        let mut demand = Demand::default();
        let mut now = Timestamp::from_secs(1_000);
        let mut run = |every: u64, times: u64| {
            for _ in 0..times {
                now = now.after(Period::from_millis(every));
                demand.asked(1, now);
            }
            demand.in_the_next(Period::from_millis(100))
        };
        assert!((95..=105).contains(&run(1, 500)));
        assert!((9..=13).contains(&run(10, 500)));
        assert!(run(5_000, 1) <= 1, "after a pause it is forgotten");
    }
}
