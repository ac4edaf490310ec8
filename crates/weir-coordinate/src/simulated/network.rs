//! The network between one instance and the store: delays and losses.

use std::time::Duration;

use super::Random;

/// Each message takes whole milliseconds, the resolution of tokio's timers; fractions are correct on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// The shortest time from a call to its reply.
    pub round_trip: Duration,
    /// The largest additional time of a call, uniformly distributed.
    pub jitter: Duration,
    /// The share of calls that take [`Network::spike`] longer, 0 to 1.
    pub spikes: f64,
    pub spike: Duration,
    /// The share of requests that are lost, 0 to 1.
    pub lost_requests: f64,
    /// The share of replies that are lost, 0 to 1: their commands are carried out.
    pub lost_replies: f64,
    /// Whether calls may overtake each other. On one real connection they do not.
    pub reorders: bool,
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) request_time: Duration,
    pub(super) reply_time: Duration,
    pub(super) request_lost: bool,
    pub(super) reply_lost: bool,
    /// Whether a lost message breaks the connection, so that the caller notices at once instead of at its timeout.
    pub(super) noticed: bool,
}

// === impl Network ===

impl Default for Network {
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
    pub(super) fn fate(&self, random: &mut Random) -> Fate {
        let mut whole = self.round_trip;
        if self.jitter > Duration::ZERO {
            whole += self.jitter.mul_f64(random.unit());
        }
        if random.chance(self.spikes) {
            whole += self.spike;
        }
        let whole = in_millis(whole, random);
        // a spike may delay either message; other delays are split evenly
        let request_time = if random.chance(self.spikes) { whole } else { whole / 2 };
        let request_lost = random.chance(self.lost_requests);
        let reply_lost = !request_lost && random.chance(self.lost_replies);
        Fate {
            request_time: Duration::from_millis(request_time),
            reply_time: Duration::from_millis(whole - request_time),
            request_lost,
            reply_lost,
            noticed: (request_lost || reply_lost) && random.chance(0.5),
        }
    }
}

/// Rounds at random, so that the average is `time`.
fn in_millis(time: Duration, random: &mut Random) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let rest = u32::try_from(micros % 1_000).unwrap_or(0);
    micros / 1_000 + u64::from(random.chance(f64::from(rest) / 1_000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_a_millisecond_are_correct_on_average() {
        let network = Network { round_trip: Duration::from_micros(300), ..Network::default() };
        let mut random = Random::new(1);
        let sum: Duration = (0..10_000)
            .map(|_| {
                let fate = network.fate(&mut random);
                fate.request_time + fate.reply_time
            })
            .sum();
        assert!((2_800..3_200).contains(&sum.as_millis()), "{sum:?}");
    }
}
