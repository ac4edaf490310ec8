//! Counts the instances, without a set of their names: in each round every instance adds one to the round's counter.
//! The number of instances is the count of the round before, or of this one if that is higher.
//!
//! A round is as long as two heartbeats, so that an instance takes part in each. An instance that leaves subtracts
//! itself; one that is killed is counted for up to two rounds more.

use parking_lot::Mutex;

use super::codec::{KeyExpiry, MetaCommand, MetaReply};
use weir_limit::{Period, Timestamp};

#[derive(Debug, Default)]
pub(super) struct InstanceSet(Mutex<CountedInstances>);

#[derive(Debug, Default)]
struct CountedInstances {
    /// The last two rounds, newest first.
    rounds: [Option<u64>; 2],
    length: Period,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heartbeat {
    round: u64,
    adds: bool,
}

// === impl InstanceSet ===

impl InstanceSet {
    pub(super) fn begin(&self, key: &str, now: Timestamp, length: Period) -> (Heartbeat, Vec<MetaCommand>) {
        let round = now.as_nanos() / length.as_nanos().max(1);
        let mut counted = self.0.lock();
        counted.length = length;
        let adds = counted.rounds[0] != Some(round);
        if adds {
            // before the reply, since it may be lost: an instance must not be counted twice
            counted.rounds = [Some(round), counted.rounds[0]];
        }
        let current = round_key(key, length, round);
        // relative to the server's clock, since a few seconds are always below the 30 days
        let expiry = KeyExpiry::after(4 * length.as_secs_ceil() + 1, 0);
        let first = if adds { MetaCommand::add(&current, 1, expiry) } else { MetaCommand::get(&current) };
        let previous = MetaCommand::get(&round_key(key, length, round.saturating_sub(1)));
        (Heartbeat { round, adds }, vec![first, previous])
    }

    /// Returns the number of instances, including this one.
    pub(super) fn finish(&self, heartbeat: Heartbeat, replies: &[MetaReply]) -> Option<usize> {
        let count = |reply: &MetaReply| match reply {
            MetaReply::Value(number) => usize::try_from(number.value).ok(),
            MetaReply::Missing => Some(0),
            _ => None,
        };
        let [current, previous] = replies else { return None };
        let (current, previous) = (count(current)?, count(previous)?);
        if current == 0 && !heartbeat.adds {
            // the server has lost its data
            self.forget(heartbeat);
        }
        Some(current.max(previous).max(1))
    }

    /// `heartbeat` was certainly not carried out, or is lost: the next one adds this instance again.
    pub(super) fn forget(&self, heartbeat: Heartbeat) {
        let mut counted = self.0.lock();
        if counted.rounds[0] == Some(heartbeat.round) {
            counted.rounds = [counted.rounds[1], None];
        }
    }

    pub(super) fn leave(&self, key: &str) -> Vec<MetaCommand> {
        let mut counted = self.0.lock();
        let rounds = std::mem::take(&mut counted.rounds);
        let leave = |round| MetaCommand::subtract(&round_key(key, counted.length, round), 1);
        rounds.into_iter().flatten().map(leave).collect()
    }
}

fn round_key(key: &str, length: Period, round: u64) -> String {
    format!("{key}_{length}_{round}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcached::codec::MetaNumber;

    const ROUND: Period = Period::from_secs(2);

    fn texts(commands: &[MetaCommand]) -> Vec<String> {
        commands.iter().map(|command| String::from_utf8_lossy(&command.0).trim_end().to_owned()).collect()
    }

    fn counts(current: u64, previous: u64) -> [MetaReply; 2] {
        [current, previous]
            .map(|value| MetaReply::Value(MetaNumber { value, version: None, is_padded: false }))
    }

    #[test]
    fn an_instance_adds_itself_once_to_each_round() {
        let instances = InstanceSet::default();
        let at = |seconds| instances.begin("i", Timestamp::from_secs(seconds), ROUND);
        let (heartbeat, commands) = at(20);
        assert_eq!(texts(&commands), ["ma i_2s_10 N9 J1 D1 v", "mg i_2s_9 v c"]);
        assert_eq!(instances.finish(heartbeat, &counts(1, 3)), Some(3));
        let (heartbeat, commands) = at(21);
        assert_eq!(texts(&commands), ["mg i_2s_10 v c", "mg i_2s_9 v c"]);
        assert_eq!(instances.finish(heartbeat, &counts(4, 3)), Some(4), "one has joined");
        let (_, commands) = at(22);
        assert_eq!(texts(&commands), ["ma i_2s_11 N9 J1 D1 v", "mg i_2s_10 v c"]);
        assert_eq!(texts(&instances.leave("i")), ["ma i_2s_11 MD D1", "ma i_2s_10 MD D1"]);
        assert!(instances.leave("i").is_empty(), "it leaves once");
    }

    #[test]
    fn a_restarted_server_counts_again_with_the_next_heartbeat() {
        let instances = InstanceSet::default();
        let begin = || instances.begin("i", Timestamp::from_secs(20), ROUND);
        begin();
        let (heartbeat, _) = begin();
        let lost = [MetaReply::Missing, MetaReply::Missing];
        assert_eq!(instances.finish(heartbeat, &lost), Some(1), "at least this one");
        assert_eq!(texts(&begin().1)[0], "ma i_2s_10 N9 J1 D1 v");
        assert_eq!(instances.finish(heartbeat, &[MetaReply::Foreign, MetaReply::Missing]), None);
    }
}
