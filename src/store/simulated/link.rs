//! The way between one instance and the store: how long messages take, and which of them get lost.

use std::time::Duration;

use super::Random;

/// What a network does to messages. Time is told in whole milliseconds on the way, for tokio's timers are; fractions
/// come out right on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// The shortest time from a call to its reply.
    pub round_trip: Duration,
    /// Up to so much more, evenly, for each call.
    pub jitter: Duration,
    /// The share of calls that take [`Network::spike`] longer, 0 to 1.
    pub spikes: f64,
    /// How much longer.
    pub spike: Duration,
    /// The share of calls that never reach the store, 0 to 1.
    pub lost_requests: f64,
    /// The share of replies that never come back, 0 to 1: their commands are carried out.
    pub lost_replies: f64,
    /// Calls may overtake each other. They do not on one connection.
    pub reorders: bool,
    /// The longest that a caller waits for a reply.
    pub timeout: Duration,
}

/// What becomes of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    /// How long the request is on its way.
    pub(super) there: Duration,
    /// How long the reply is.
    pub(super) back: Duration,
    pub(super) request_lost: bool,
    pub(super) reply_lost: bool,
    /// What is lost is lost with the connection, so that the caller hears of it at once, and not by its timeout.
    pub(super) noticed: bool,
}

// === impl Network ===

impl Default for Network {
    /// One that is quick, even and loses nothing.
    fn default() -> Self {
        Self {
            round_trip: Duration::from_millis(2),
            jitter: Duration::ZERO,
            spikes: 0.0,
            spike: Duration::ZERO,
            lost_requests: 0.0,
            lost_replies: 0.0,
            reorders: false,
            timeout: Duration::from_millis(500),
        }
    }
}

impl Network {
    /// Decides about a call.
    pub(super) fn fate(&self, random: &mut Random) -> Fate {
        let mut whole = self.round_trip;
        if self.jitter > Duration::ZERO {
            whole += self.jitter.mul_f64(random.unit());
        }
        if random.chance(self.spikes) {
            whole += self.spike;
        }
        let whole = in_millis(whole, random);
        // a spike may be on either leg; the rest is shared evenly
        let there = if random.chance(self.spikes) { whole } else { whole / 2 };
        let request_lost = random.chance(self.lost_requests);
        let reply_lost = !request_lost && random.chance(self.lost_replies);
        Fate {
            there: Duration::from_millis(there),
            back: Duration::from_millis(whole - there),
            request_lost,
            reply_lost,
            noticed: (request_lost || reply_lost) && random.chance(0.5),
        }
    }
}

/// Whole milliseconds that are `time` on average.
fn in_millis(time: Duration, random: &mut Random) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let rest = u32::try_from(micros % 1_000).unwrap_or(0);
    micros / 1_000 + u64::from(random.chance(f64::from(rest) / 1_000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_a_millisecond_come_out_right_on_average() {
        let network = Network { round_trip: Duration::from_micros(300), ..Network::default() };
        let mut random = Random::new(1);
        let sum: Duration = (0..10_000)
            .map(|_| {
                let fate = network.fate(&mut random);
                fate.there + fate.back
            })
            .sum();
        assert!((2_800..3_200).contains(&sum.as_millis()), "{sum:?}");
    }
}
