//! How much of a counter is asked for.

use crate::limit::{Period, Timestamp};

/// The shortest time over which a rate is taken.
const SPELL: Period = Period::from_millis(20);

/// As many hits say something about a rate; of fewer, a longer time is looked at.
const ENOUGH: u64 = 8;

/// But not a longer one than this.
const LONGEST_SPELL: Period = Period::from_millis(500);

/// After a pause of so long what was before says nothing.
const PAUSE: Period = Period::from_secs(1);

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
        if spell >= SPELL && (self.hits >= ENOUGH || spell >= LONGEST_SPELL) {
            let rate = self.hits as f64 / spell.as_nanos() as f64;
            let weight = if spell > PAUSE || self.rate == 0.0 { 0.0 } else { 0.5 };
            self.rate = self.rate * weight + rate * (1.0 - weight);
            (self.since, self.hits) = (now, 0);
        }
        self.hits = self.hits.saturating_add(hits);
    }

    /// Hits that are likely to be asked for in `time` from `now` on.
    pub(super) fn in_the_next(&self, time: Period, now: Timestamp) -> u64 {
        (self.rate_at(now) * time.as_nanos() as f64).ceil() as u64
    }

    /// How long `hits` are likely to take to be asked for.
    pub(super) fn time_for(&self, hits: u64, now: Timestamp) -> Period {
        let rate = self.rate_at(now);
        if rate > 0.0 { Period::from_nanos((hits as f64 / rate) as u64) } else { Period::MAX }
    }

    /// In hits a nanosecond.
    fn rate_at(&self, now: Timestamp) -> f64 {
        let spell = now.since(self.since).max(SPELL).as_nanos() as f64;
        if self.rate == 0.0 {
            // who has just come, or has come back, is judged by what he did since; of one hit nothing can be told
            return self.hits.saturating_sub(1) as f64 / spell;
        }
        // and who has gone by what he would have done
        self.rate.min((self.hits + ENOUGH) as f64 / spell)
    }
}

/// Hits a second that all instances together take, by what the store tells now and then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    begun: Timestamp,
    at: Timestamp,
    used: u64,
    /// In hits a nanosecond.
    rate: f64,
    /// How often it was told, up to [`YOUNG`].
    told: u8,
}

/// As often it has to be told before it is believed. What the store tells first is too little: the others have not told it
/// yet what they took.
const YOUNG: u8 = 4;

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
impl Flow {
    /// Of a counter that is met for the first time at `now`.
    pub(super) fn new(now: Timestamp) -> Self {
        Self { begun: now, at: now, ..Self::default() }
    }

    /// Notes that `used` hits are counted, of which this instance took `own` since the last time, as one of `instances`; until
    /// it is believed, the others are taken to take as much. What it knows of the rate it keeps where nothing new can be told: in a new
    /// window, and while nothing is admitted.
    pub(super) fn heard(&mut self, used: u64, own: u64, instances: usize, interval: Period, now: Timestamp) {
        let time = now.since(self.at).as_nanos();
        // what was counted before it was met is not of its time
        let mut hits = if self.told == 0 { 0 } else { used.saturating_sub(self.used) };
        if self.told < YOUNG || now.since(self.begun) < interval {
            self.told = self.told.saturating_add(1);
            hits = hits.max(own.saturating_mul(instances as u64));
        }
        if time > 0 && hits > 0 {
            let rate = hits as f64 / time as f64;
            // it takes a higher rate at its word: to hear too often costs little, to hear too late costs hits
            self.rate = if rate > self.rate { rate } else { 0.75 * self.rate + 0.25 * rate };
        }
        (self.at, self.used) = (now, used);
    }

    /// How long it takes for `hits` to be taken.
    pub(super) fn time_for(&self, hits: u64) -> Period {
        if self.rate > 0.0 { Period::from_nanos((hits as f64 / self.rate) as u64) } else { Period::MAX }
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
            demand.in_the_next(Period::from_millis(100), now)
        };
        assert!((95..=105).contains(&run(1, 500)));
        assert!((9..=13).contains(&run(10, 500)));
        assert!(run(5_000, 1) <= 1, "after a pause it is forgotten");
    }
}
