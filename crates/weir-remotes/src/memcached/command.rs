//! Encoding one operation as meta commands, and interpreting their replies.
//!
//! Memcached cannot add on a condition. Hits that are rejected without being counted are therefore added, and
//! subtracted again as soon as the reply says that they do not fit: the limit holds, but for a moment other requests
//! see these hits.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{
    codec::{KeyExpiry, MetaCommand, MetaNumber, MetaReply},
    key,
};
use crate::transport::malformed_reply;
use weir_limit::{Direction, OverLimitPolicy, Timestamp};
use weir_store::{
    encoding,
    name::{self, KeySettings},
    remote::{Exchange, RemoteError, Reply, Report, Target},
};

/// More than any limit admits, and so few that a counter overflows only after billions of commands.
const MAX_HITS: u64 = 1 << 32;

pub(super) type MetaCommands = SmallVec<[MetaCommand; 2]>;

pub(super) struct MemcachedCommand {
    target: Arc<Target>,
    exchange: Exchange,
    at: Timestamp,
    pub(super) counter: MemcachedCounter,
}

#[derive(Clone, Debug)]
pub(super) struct MemcachedCounter {
    pub(super) key: String,
    expiry: KeyExpiry,
}

pub(super) struct MemcachedOutcome {
    pub(super) reply: Result<Reply, RemoteError>,
    pub(super) follow_up: Option<FollowUp>,
}

/// Completes an operation. Nobody waits for it.
#[derive(Debug)]
pub(super) struct FollowUp {
    pub(super) commands: Vec<MetaCommand>,
    /// The counter that the last of them reads, if it may have to be mended then.
    pub(super) counter: Option<MemcachedCounter>,
}

pub(super) fn key_of(settings: &KeySettings, target: &Target, at: Timestamp) -> String {
    key::accepted(name::keys(settings, target, at).swap_remove(0))
}

// === impl MemcachedCommand ===

impl MemcachedCommand {
    /// `target` is one fixed window, and `now` is in seconds since the epoch.
    pub(super) fn new(
        target: Arc<Target>,
        exchange: Exchange,
        at: Timestamp,
        settings: &KeySettings,
        now: u64,
        random: u64,
    ) -> Self {
        let at = exchange.counted_at(at);
        let jitter = random % settings.jitter_seconds.max(1);
        let seconds = name::seconds_to_live(&target.tiers[0], at).saturating_add(jitter);
        let counter =
            MemcachedCounter { key: key_of(settings, &target, at), expiry: KeyExpiry::after(seconds, now) };
        Self { target, exchange, at, counter }
    }

    /// At least one. The last one returns the count.
    pub(super) fn encode(&self) -> MetaCommands {
        let mut commands = MetaCommands::new();
        let mut add = 0_u64;
        for report in &self.exchange.reports {
            let (subtracted, added) = parts(report);
            let unused = report.unused.map_or(0, |unused| unused.hits);
            let subtracts = [unused, subtracted].into_iter().filter(|hits| *hits > 0);
            commands.extend(subtracts.map(|hits| MetaCommand::subtract(&self.counter.key, hits)));
            add = add.saturating_add(added);
        }
        for run in &self.exchange.runs {
            let hits = run.all_hits().min(MAX_HITS);
            match run.direction {
                Direction::Take | Direction::Look => add = add.saturating_add(hits),
                Direction::GiveBack => {
                    commands.extend(self.add(std::mem::take(&mut add)));
                    commands.push(MetaCommand::subtract(&self.counter.key, hits));
                }
            }
        }
        commands.extend(self.add(add.saturating_add(self.held_if_any_fit())));
        // a check must not create the key, and after a subtraction the number may have to be rewritten
        if commands.is_empty() || self.subtracts() {
            commands.push(MetaCommand::get(&self.counter.key));
        }
        commands
    }

    fn add(&self, hits: u64) -> Option<MetaCommand> {
        (hits > 0).then(|| MetaCommand::add(&self.counter.key, hits.min(MAX_HITS), self.counter.expiry))
    }

    /// The hits of all tries, and no more in advance than is of use, since it is not known how many fit.
    fn added(&self) -> u64 {
        self.exchange.tried().saturating_add(self.held_if_any_fit()).min(MAX_HITS)
    }

    fn held_if_any_fit(&self) -> u64 {
        self.exchange.lease.map_or(0, |lease| lease.least)
    }

    fn subtracts(&self) -> bool {
        let is_less = |report: &Report| report.unused.is_some() || parts(report).0 > 0;
        self.exchange.given_back() > 0 || self.exchange.reports.iter().any(is_less)
    }

    /// `replies` has one for each of the commands.
    pub(super) fn outcome(&self, replies: &[MetaReply]) -> MemcachedOutcome {
        for (i, reply) in replies.iter().enumerate() {
            let error = match reply {
                MetaReply::Value(_) | MetaReply::Missing => continue,
                // a subtraction
                MetaReply::Done if i + 1 < replies.len() => continue,
                _ if self.is_partly_applied(replies) => RemoteError::Unreachable(
                    "it carried out a part of the operation, and rejected the rest".into(),
                ),
                MetaReply::Foreign => {
                    RemoteError::Rejected("the value of the key was not written by weir".into())
                }
                MetaReply::Rejected(reason) => RemoteError::Rejected(reason.clone()),
                MetaReply::Done | MetaReply::Changed | MetaReply::NoOp => malformed_reply(),
            };
            return MemcachedOutcome { reply: Err(error), follow_up: None };
        }
        let last = match replies.last() {
            Some(MetaReply::Value(number)) => *number,
            Some(_) => MetaNumber { value: 0, version: None, is_padded: false },
            None => return MemcachedOutcome { reply: Err(malformed_reply()), follow_up: None },
        };
        let limit = u64::from(self.target.tiers[0].requests);
        let mended = self.counter.mended(last);
        let mut follow_up = mended.map(|command| FollowUp { commands: vec![command], counter: None });
        // tries were added after everything else, whether or not they fit; a count never falls below zero, so that it
        // may have been lower before one gave more back
        let before = last.value.saturating_add(self.exchange.given_back()).saturating_sub(self.added());
        let needed = self.held_if_any_fit();
        let (taken, is_held, used) = self.exchange.decide_in_window(before, limit, needed);
        let rejected = last.value.saturating_sub(used);
        if rejected > 0 && self.added() > 0 {
            follow_up = Some(self.taken_back(rejected));
        } else if used > last.value && self.exchange.all_or_none {
            follow_up =
                Some(FollowUp { commands: self.add(used - last.value).into_iter().collect(), counter: None });
        }
        let counters = smallvec![encoding::window(&self.target.tiers[0], self.at, before)];
        let granted = if is_held { needed } else { 0 };
        MemcachedOutcome { reply: Ok(Reply { granted, taken, counters, ..Reply::default() }), follow_up }
    }

    /// Meta commands are carried out one by one: an error to one undoes no other, and a repetition would count twice.
    fn is_partly_applied(&self, replies: &[MetaReply]) -> bool {
        let reads = usize::from(self.subtracts());
        let changes = &replies[..replies.len().saturating_sub(reads)];
        changes.iter().any(|reply| matches!(reply, MetaReply::Done | MetaReply::Value(_)))
    }

    fn taken_back(&self, hits: u64) -> FollowUp {
        let mut commands = vec![MetaCommand::subtract(&self.counter.key, hits)];
        // weir itself can read what a subtraction leaves
        let is_shared = self.target.over_limit_policy == OverLimitPolicy::Count;
        if is_shared {
            commands.push(MetaCommand::get(&self.counter.key));
        }
        FollowUp { commands, counter: is_shared.then(|| self.counter.clone()) }
    }
}

// === impl MemcachedCounter ===

impl MemcachedCounter {
    pub(super) fn mended(&self, number: MetaNumber) -> Option<MetaCommand> {
        // without this, envoyproxy/ratelimit could not read the count and would take it for zero
        let version = number.version.filter(|_| number.is_padded)?;
        Some(MetaCommand::replace(&self.key, number.value, version, self.expiry))
    }
}

/// `x` becomes `max(0, x - subtracted) + added`.
fn parts(report: &Report) -> (u64, u64) {
    let change = report.change;
    let subtracted = i128::from(change.floor) - i128::from(change.hits);
    (u64::try_from(subtracted.max(0)).unwrap_or(u64::MAX), change.floor)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use weir_limit::{Period, Tier, algorithm::CountChange};
    use weir_store::remote::{LeaseRequest, Run};

    const LIMIT: u64 = 10;

    fn prepared(over_limit_policy: OverLimitPolicy, exchange: Exchange) -> MemcachedCommand {
        let tier = Tier::fixed_window(10, Period::from_secs(60));
        let target = Target { path: "shop|tenant=acme".into(), tiers: [tier].into(), over_limit_policy };
        let settings = KeySettings { prefix: "".into(), unambiguous: false, jitter_seconds: 0 };
        MemcachedCommand::new(Arc::new(target), exchange, Timestamp::from_secs(90), &settings, 90, 7)
    }

    fn texts(exchange: Exchange) -> Vec<String> {
        let commands = prepared(OverLimitPolicy::Count, exchange).encode();
        commands.iter().map(|command| String::from_utf8_lossy(&command.0).trim_end().into()).collect()
    }

    fn number(value: u64) -> MetaReply {
        MetaReply::Value(MetaNumber { value, version: None, is_padded: false })
    }

    fn used(reply: &Reply) -> u64 {
        reply.counters[0].used().0
    }

    #[test]
    fn each_operation_has_its_commands() {
        let at = Timestamp::from_secs(61);
        let key = "shop_tenant_acme_60";
        assert_eq!(texts(Exchange::of_try(3, OverLimitPolicy::Count)), [format!("ma {key} N60 J3 D3 v")]);
        assert_eq!(
            texts(Exchange::of_try(0, OverLimitPolicy::Count)),
            [format!("mg {key} v c")],
            "a check creates nothing"
        );
        assert_eq!(texts(Exchange::of_report(Report::of(at, 3))), [format!("ma {key} N60 J3 D3 v")]);
        let back = [format!("ma {key} MD D3"), format!("mg {key} v c")];
        assert_eq!(texts(Exchange::of_report(Report::of(at, -3))), back);
        assert_eq!(
            texts(Exchange::of_report(Report::unused(at, 3, at))),
            back,
            "hits that are given back do not create a counter"
        );
        let mut change = CountChange::of(-3);
        change.append(5);
        let report = Report { change, ..Report::of(at, 0) };
        assert_eq!(
            texts(Exchange::of_report(report)),
            [format!("ma {key} MD D3"), format!("ma {key} N60 J5 D5 v"), format!("mg {key} v c")]
        );
        assert_eq!(
            texts(Exchange::of_try(u64::MAX, OverLimitPolicy::Count)),
            [format!("ma {key} N60 J{MAX_HITS} D{MAX_HITS} v")]
        );
    }

    /// Otherwise it is sent again, and what it has already subtracted is subtracted twice.
    #[test]
    fn an_operation_that_failed_in_part_is_of_unknown_outcome() {
        let mut change = CountChange::of(-3);
        change.append(5);
        let both = || Exchange::of_report(Report { change, ..Report::of(Timestamp::default(), 0) });
        let back = || Exchange::of_report(Report::unused(Timestamp::default(), 3, Timestamp::default()));
        let full = || MetaReply::Rejected("out of memory".into());
        for (exchange, replies, is_unknown) in [
            (both(), vec![MetaReply::Done, full(), number(4)], true),
            (both(), vec![full(), number(9), number(9)], true),
            (back(), vec![MetaReply::Done, full()], true),
            (both(), vec![full(), full(), number(7)], false),
            (both(), vec![MetaReply::Missing, full(), MetaReply::Missing], false),
            (back(), vec![full(), number(7)], false),
        ] {
            let outcome = prepared(OverLimitPolicy::Count, exchange).outcome(&replies);
            let error = outcome.reply.expect_err("a part failed");
            assert_eq!(error.is_definitely_not_applied(), !is_unknown, "{replies:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_change_is_a_subtraction_and_an_addition(hits in vec(-20..20_i64, 0..10), count in 0..60_u64) {
            let mut change = CountChange::default();
            for hits in &hits {
                change.append(*hits);
            }
            let (subtracted, added) = parts(&Report { change, ..Report::default() });
            prop_assert_eq!(count.saturating_sub(subtracted) + added, change.apply(count));
        }
    }

    /// In a window of 10 hits, which others count in, too.
    #[test]
    fn what_is_given_back_is_there_for_the_tries_that_follow() {
        let of = |all_or_none| {
            let run = |direction, hits| Run { direction, hits, tries: 1, counts_rejected: false };
            let runs = [run(Direction::GiveBack, 5), run(Direction::Take, 4)].into_iter().collect();
            Exchange { runs, all_or_none, ..Exchange::default() }
        };
        let key = "shop_tenant_acme_60";
        let commands = [format!("ma {key} MD D5"), format!("ma {key} N60 J4 D4 v"), format!("mg {key} v c")];
        assert_eq!(texts(of(false)), commands);
        // the count afterwards, whether the try is admitted, the hits that counted before, and what follows
        for (value, all_or_none, taken, before, then) in [
            (9, false, 1, 10, None),
            (12, false, 0, 13, Some(" MD D4\r\n")),
            (9, true, 1, 10, None),
            (12, true, 0, 13, Some(" D1 v\r\n")),
        ] {
            let replies = [MetaReply::Done, number(value), number(value)];
            let outcome = prepared(OverLimitPolicy::Ignore, of(all_or_none)).outcome(&replies);
            let reply = outcome.reply.expect("it was carried out");
            assert_eq!((&reply.taken[..], used(&reply)), (&[1, taken][..], before), "{value}");
            let follow_up = outcome.follow_up.map(|follow_up| follow_up.commands[0].0.clone());
            let follows =
                |text: &str| follow_up.as_ref().is_some_and(|command| command.ends_with(text.as_bytes()));
            assert!(then.map_or(follow_up.is_none(), follows), "{value}, {all_or_none}: {follow_up:?}");
        }
    }

    #[test]
    fn rejected_hits_count_only_in_rules_of_envoyproxy_ratelimit() {
        let lease = LeaseRequest { least: 3, want: 5, hold: Period::default() };
        let (take, grant) = (|policy| Exchange::of_try(3, policy), |_| Exchange::of_lease(lease));
        let cases: [(_, &dyn Fn(OverLimitPolicy) -> Exchange, _); 4] = [
            (OverLimitPolicy::Count, &take, true),
            (OverLimitPolicy::Ignore, &take, false),
            (OverLimitPolicy::Count, &grant, false),
            (OverLimitPolicy::Ignore, &grant, false),
        ];
        let given =
            |reply: &Reply| reply.granted + 3 * reply.taken.iter().copied().map(u64::from).sum::<u64>();
        for (policy, exchange, counts) in cases {
            let outcome = prepared(policy, exchange(policy)).outcome(&[number(LIMIT + 2)]);
            let reply = outcome.reply.expect("it was carried out");
            assert_eq!((given(&reply), used(&reply)), (0, 9), "{policy:?}");
            let follow_up = outcome.follow_up.map_or_else(Vec::new, |follow_up| follow_up.commands);
            let subtracts = follow_up.first().is_some_and(|command| command.0.ends_with(b" MD D3\r\n"));
            assert_eq!(subtracts, !counts);
            assert_eq!(
                follow_up.len() > 1,
                subtracts && policy == OverLimitPolicy::Count,
                "it is read again"
            );
            let reply = prepared(policy, exchange(policy)).outcome(&[number(LIMIT)]).reply;
            assert_eq!(given(&reply.expect("it was carried out")), 3);
        }
    }

    #[test]
    fn a_padded_number_is_rewritten() {
        let give_back =
            || prepared(OverLimitPolicy::Count, Exchange::of_report(Report::of(Timestamp::default(), -1)));
        let follow_up = |reply| {
            let command = give_back().outcome(&[reply]).follow_up?.commands.swap_remove(0);
            Some(String::from_utf8_lossy(&command.0).into_owned())
        };
        let padded = MetaNumber { value: 9, version: Some(77), is_padded: true };
        assert_eq!(
            follow_up(MetaReply::Value(padded)).as_deref(),
            Some("ms shop_tenant_acme_0 1 C77 T60\r\n9\r\n")
        );
        assert_eq!(follow_up(number(5)), None);
    }

    #[test]
    fn a_missing_counter_is_zero_and_errors_are_reported() {
        let outcome =
            |reply: MetaReply| prepared(OverLimitPolicy::Count, Exchange::read()).outcome(&[reply]).reply;
        assert_eq!(used(&outcome(MetaReply::Missing).expect("it was carried out")), 0);
        assert!(matches!(outcome(MetaReply::Foreign), Err(RemoteError::Rejected(_))));
        assert!(matches!(
            outcome(MetaReply::Rejected("out of memory".into())),
            Err(RemoteError::Rejected(_))
        ));
        assert!(matches!(outcome(MetaReply::Done), Err(RemoteError::Unreachable(_))));
    }
}
