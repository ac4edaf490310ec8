//! Tests of a local counter beside a store, between which the test carries commands and replies by hand.

// the simulated store is part of it

mod estimate;
mod flushes;
mod lease_ends;
mod leasing;
mod lifetime;
mod records;
mod replies;
mod reports;
mod reservations;

use std::sync::Arc;

use super::{DecisionRequest, Generation, Group, LocalCounter, PendingOutcome, Sent, TryKind};
use crate::{
    client::{ExchangeOutcome, Link, StoreTime},
    metrics::HitCounts,
    simulated::SimulatedServer,
    test_tiers::{START, bucket, fixed, millis, sliding},
};
use weir_limit::{
    Algorithm, Bucket, Coordination, CounterKey, Decision, Direction, Hits, OverLimitPolicy, Period, Refill,
    Tier, Timestamp,
};
use weir_store::{
    remote::{Command, Exchange, LeaseRequest, RemoteError, Reply, Report, Target},
    wakeup::Wakeups,
};

fn strict_bucket(requests: u32, seconds: u64) -> Tier {
    let bucket = Bucket { burst: requests, refill: Refill::Continuous, strict: true };
    Tier { algorithm: Algorithm::TokenBucket(bucket), ..fixed(requests, seconds) }
}

impl LocalCounter {
    /// Returns the hits that may have been counted or not.
    pub(crate) fn apply(&mut self, sent: &mut Sent, outcome: ExchangeOutcome<'_>, link: &Link) -> u64 {
        let (hits, mut woken) = (HitCounts::default(), Wakeups::new());
        sent.apply(self, outcome, link, &hits, &mut woken);
        hits.delivery_unknown.get()
    }

    fn apply_reply_to(&mut self, reply: &Reply, number: u32, now: Timestamp) {
        let mut sent = Sent::new(CounterKey::default(), self, number);
        self.apply(&mut sent, Ok((reply, now)), &link(2, now));
    }

    fn apply_last_reply(&mut self, reply: &Reply, now: Timestamp) {
        self.apply_reply_to(reply, self.numbers.sent, now);
    }

    /// Returns whether it has nothing that few counters have.
    fn is_small(&self) -> bool {
        self.ledger.leases().is_empty() && self.traffic.is_none() && self.fallback.is_none()
    }

    pub(crate) fn among(&mut self, instances: usize) -> &mut Self {
        self.follow_instances(instances);
        self
    }

    pub(crate) fn composed(&mut self, link: &Link) -> Vec<(Command, Sent)> {
        let mut composed = Vec::new();
        self.follow_instances(link.instances);
        self.drop_ended(link.time.now);
        self.compose(CounterKey::default(), link, &mut composed);
        composed
    }
}

const fn taking(hits: u64) -> DecisionRequest {
    let (direction, policy) = (Direction::Take, OverLimitPolicy::Ignore);
    DecisionRequest { direction, hits: Hits(hits), policy, is_cost: false }
}

fn link(instances: usize, now: Timestamp) -> Link {
    let time = StoreTime { now, latest: now };
    Link { time, instances, writer: 1, round_trip: millis(1), budget: millis(15), local_cache: true }
}

/// None if the store has to be asked.
fn decide_leased(
    counter: &mut LocalCounter,
    instances: usize,
    hits: u64,
    now: Timestamp,
) -> Option<Decision> {
    let link = link(instances, now);
    let decided = counter.among(instances).decide(Coordination::Lease, &taking(hits), &link, false);
    decided.ok().map(|(decision, _)| decision)
}

impl Sent {
    pub(crate) fn lease_more(&mut self, command: &mut Command, hits: u64, hold: Period) {
        let lease = self.lease.unwrap_or(LeaseRequest { least: 1, want: 0, hold });
        self.lease = Some(LeaseRequest { want: lease.want + hits, hold: lease.hold.max(hold), ..lease });
        command.exchange.lease = self.lease;
    }
}

type Composed = Vec<(Command, Sent)>;

/// An instance's counter under `lease`, and the store.
struct Fixture {
    counter: LocalCounter,
    store: SimulatedServer,
    now: Timestamp,
    instances: usize,
    waiting: Vec<PendingOutcome>,
}

impl Fixture {
    fn new(tiers: &[Tier], instances: usize) -> Self {
        Self::with_policy(tiers, instances, OverLimitPolicy::Ignore)
    }

    fn with_policy(tiers: &[Tier], instances: usize, over_limit_policy: OverLimitPolicy) -> Self {
        let target = Target { path: "d|k=v".into(), tiers: tiers.to_vec().into(), over_limit_policy };
        let mut counter = LocalCounter::new(Arc::new(target), millis(100), Generation(1), START);
        counter.choice.mode = Coordination::Lease;
        counter.last_check_at = START;
        counter.follow_instances(instances);
        Self { counter, store: SimulatedServer::default(), now: START, instances, waiting: Vec::new() }
    }

    fn wait(&mut self, time: Period) {
        self.now = self.now.after(time);
    }

    /// Decides about `hits` by the estimate alone.
    fn count(&mut self, hits: u64) -> Decision {
        let policy = self.counter.target.over_limit_policy;
        self.counter.among(self.instances).count(Direction::Take, policy, Hits(hits), self.now)
    }

    fn give_back(&mut self, hits: u64) {
        let policy = self.counter.target.over_limit_policy;
        self.counter.among(self.instances).count(Direction::GiveBack, policy, Hits(hits), self.now);
    }

    /// Decides about `hits` by the estimate and the leases.
    fn decide(&mut self, hits: u64) -> Option<Decision> {
        decide_leased(&mut self.counter, self.instances, hits, self.now)
    }

    fn take_elsewhere(&mut self, hits: u64) -> u64 {
        let policy = self.counter.target.over_limit_policy;
        let reply = self.execute(Exchange::of_try(hits, policy));
        hits * u64::from(reply.taken[0])
    }

    fn execute(&mut self, exchange: Exchange) -> Reply {
        let target = Arc::clone(&self.counter.target);
        self.store.execute(&Command { target, at: self.now, exchange }, self.now)
    }

    /// Of the first tier.
    fn is_exact(&self) -> bool {
        self.counter.last_reply.exact.contains(0)
    }

    fn left_in_store(&mut self) -> u32 {
        let reply = self.execute(Exchange::read());
        let left = reply.counters.iter().zip(&self.counter.target.tiers);
        left.map(|(state, tier)| state.availability(tier, self.now).remaining).min().expect("there is a tier")
    }

    fn link(&self) -> Link {
        Link { round_trip: millis(2), ..link(self.instances, self.now) }
    }

    fn compose(&mut self) -> Composed {
        self.counter.composed(&self.link())
    }

    fn flush(&mut self) -> Vec<Command> {
        let composed = self.take();
        let commands = composed.iter().map(|(command, _)| command.clone()).collect();
        self.deliver(composed);
        commands
    }

    fn take(&mut self) -> Composed {
        if self.counter.can_flush() { self.compose() } else { Composed::new() }
    }

    /// Returns the hits that were taken and leased.
    fn deliver(&mut self, composed: Composed) -> u64 {
        let execute = |(command, sent)| (self.store.execute(&command, self.now), sent);
        let replies: Vec<_> = composed.into_iter().map(execute).collect();
        let mut granted = 0;
        for (reply, mut sent) in replies {
            let runs = sent.runs.iter().zip(&reply.taken);
            granted += reply.granted + runs.map(|(run, taken)| run.hits * u64::from(*taken)).sum::<u64>();
            self.counter.apply(&mut sent, Ok((&reply, self.now)), &self.link());
        }
        granted
    }

    /// The store never receives them.
    fn reports(&mut self) -> Vec<Report> {
        self.take().iter().flat_map(|(command, _)| command.exchange.reports.to_vec()).collect()
    }

    fn read(&mut self) {
        let writer = link(1, self.now).writer_of(1, 0);
        let reply = self.execute(Exchange { writer, ..Exchange::read() });
        self.counter.apply_last_reply(&reply, self.now);
    }

    fn ask(&mut self, hits: u64, asks: TryKind) {
        let (_, outcome) = self.counter.add_try(Hits(hits), asks, None).expect("there is room");
        self.waiting.push(outcome);
    }

    fn request(&mut self, hits: u64) -> Composed {
        self.ask(hits, TryKind::Lease(OverLimitPolicy::Ignore));
        self.compose()
    }

    fn lease(&mut self, hits: u64) -> u64 {
        let composed = self.request(hits);
        self.deliver(composed)
    }

    /// `hold` is for how long they may be used, unless the first window ends before.
    fn grant_lease(&mut self, hits: u64, hold: Period) {
        self.ask(0, TryKind::Look);
        let mut composed = self.compose();
        let (command, sent) = composed.last_mut().expect("a look");
        sent.lease_more(command, hits, hold);
        assert_eq!(self.deliver(composed), hits);
    }

    /// Does not count the hits.
    fn demand(&mut self, every: Period, times: u64) {
        for _ in 0..times {
            self.wait(every);
            self.counter.demand.record(1, self.now);
        }
        self.counter.last_check_at = self.now;
    }
}

fn lease_request(composed: &Composed) -> Option<LeaseRequest> {
    composed.iter().find_map(|(command, _)| command.exchange.lease)
}
