//! Tests of a local counter beside a store, between which the test carries commands and replies by hand.

// the simulated store is part of it
#![cfg(feature = "server")]

mod estimate;
mod flushes;
mod keeping;
mod lease_ends;
mod leasing;
mod lifetime;
mod pace;
mod places;
mod records;
mod reports;
mod reservations;
mod scarcity;
mod siblings;
mod singles;
mod waiting;

use std::sync::Arc;

use super::{FetchCommand, Generation, LocalCounter};
use crate::{
    limit::{
        Algorithm, Bucket, Coordination, Decision, Direction, Hits, OverLimitPolicy, Period, Refill, Tier,
        Timestamp,
    },
    store::{
        coordinated::{
            delivery::Delivery,
            store_time::StoreTime,
            test_tiers::{START, fixed, millis, sliding},
        },
        remote::{Command, Op, Reply, Report, Target},
        simulated::SimulatedServer,
    },
};

fn bucket(requests: u32, seconds: u64) -> Tier {
    let bucket = Bucket { burst: requests, refill: Refill::Continuous, strict: false };
    Tier { algorithm: Algorithm::TokenBucket(bucket), ..fixed(requests, seconds) }
}

fn strict_bucket(requests: u32, seconds: u64) -> Tier {
    let bucket = Bucket { burst: requests, refill: Refill::Continuous, strict: true };
    Tier { algorithm: Algorithm::TokenBucket(bucket), ..fixed(requests, seconds) }
}

impl LocalCounter {
    /// Applies `reply` as that to its last command.
    fn apply_last_reply(&mut self, reply: &Reply, now: Timestamp) -> bool {
        self.apply_reply_to(reply, self.sent, now)
    }
}

/// An instance's counter under `lease`, and the store.
struct Fixture {
    counter: LocalCounter,
    store: SimulatedServer,
    now: Timestamp,
    instances: usize,
}

impl Fixture {
    fn new(tiers: &[Tier], instances: usize) -> Self {
        Self::with_policy(tiers, instances, OverLimitPolicy::Ignore)
    }

    fn with_policy(tiers: &[Tier], instances: usize, over_limit_policy: OverLimitPolicy) -> Self {
        let target = Target { path: "d|k=v".into(), tiers: tiers.to_vec().into(), over_limit_policy };
        let mut counter = LocalCounter::new(Arc::new(target), millis(100), Generation(1), START);
        counter.mode = Coordination::Lease;
        counter.follow_instances(instances);
        Self { counter, store: SimulatedServer::default(), now: START, instances }
    }

    fn wait(&mut self, time: Period) {
        self.now = self.now.after(time);
    }

    fn time(&self) -> StoreTime {
        StoreTime { now: self.now, latest: self.now }
    }

    /// Decides about `hits` by the estimate alone.
    fn count(&mut self, hits: u64) -> Decision {
        let policy = self.counter.target.over_limit_policy;
        self.counter.count(self.instances, Direction::Take, policy, Hits(hits), self.now)
    }

    fn give_back(&mut self, hits: u64) {
        let policy = self.counter.target.over_limit_policy;
        self.counter.count(self.instances, Direction::GiveBack, policy, Hits(hits), self.now);
    }

    /// Decides about `hits` by the estimate and the leases.
    fn decide(&mut self, hits: u64) -> Option<Decision> {
        self.counter.decide_leased(self.instances, OverLimitPolicy::Ignore, Hits(hits), self.now)
    }

    /// Takes hits as another instance does, and returns how many it received.
    fn take_elsewhere(&mut self, hits: u64) -> u64 {
        self.execute(Op::Take { hits }).granted
    }

    fn execute(&mut self, op: Op) -> Reply {
        let target = Arc::clone(&self.counter.target);
        self.store.execute(&Command { target, at: self.now, op }, self.now)
    }

    /// Returns the hits that the store would still grant.
    fn left_in_store(&mut self) -> u32 {
        let reply = self.execute(Op::Take { hits: 0 });
        let left = reply.counters.iter().zip(&self.counter.target.tiers);
        left.map(|(state, tier)| state.availability(tier, self.now).remaining).min().expect("there is a tier")
    }

    /// Sends what is pending, and applies the reply. Returns the commands.
    fn flush(&mut self) -> Vec<Command> {
        let commands = self.take();
        self.deliver(&commands);
        commands
    }

    /// Takes what is pending, one command or none.
    fn take(&mut self) -> Vec<Command> {
        self.counter.take_command(self.now).0.into_iter().collect()
    }

    fn deliver(&mut self, commands: &[Command]) {
        let replies: Vec<Reply> = commands.iter().map(|c| self.store.execute(c, self.now)).collect();
        if let Some(reply) = replies.last() {
            self.counter.apply_delivery(Delivery::Applied);
            self.counter.apply_flush_reply(reply, self.now);
        }
    }

    /// Takes what is pending, and returns its reports, which the store never receives.
    fn reports(&mut self) -> Vec<Report> {
        self.take().iter().flat_map(|command| command.op.reports().to_vec()).collect()
    }

    /// Reads the store's state.
    fn read(&mut self) {
        let reply = self.execute(Op::Take { hits: 0 });
        self.counter.apply_last_reply(&reply, self.now);
    }

    /// Requests a lease for a decision about `hits`, which is not made then.
    fn request(&mut self, hits: u64) -> FetchCommand {
        let leased = self.counter.leased_hits();
        let decision = self.counter.fetch_mut().wait_for(Hits(hits), Hits(hits).minus(Hits(leased)));
        let fetched = self.fetch();
        self.counter.fetch_mut().leave(decision);
        fetched
    }

    /// Starts to fetch the next lease. It should last 50 ms at least, and one that ends within 10 ms is returned.
    fn fetch(&mut self) -> FetchCommand {
        let fetched = self.counter.fetch_command(self.instances, millis(50), millis(10), self.now);
        self.counter.fetch_mut().is_running = true;
        fetched
    }

    /// Applies the replies to a fetch, as soon as the store has carried it out. Returns what was granted.
    fn complete(&mut self, fetched: &FetchCommand) -> u64 {
        let replies: Vec<Reply> =
            fetched.command.iter().map(|command| self.store.execute(command, self.now)).collect();
        if fetched.reports {
            self.counter.apply_delivery(Delivery::Applied);
        }
        self.counter.fetch_mut().is_running = false;
        let Some(reply) = replies.last() else { return 0 };
        if fetched.want > 0 {
            self.counter.apply_grant(reply, millis(2), self.now);
            return reply.granted;
        }
        self.counter.apply_fetched_report(reply, self.now);
        0
    }

    /// Leases hits of which `hits` are needed at once. Returns how many were granted.
    fn lease(&mut self, hits: u64) -> u64 {
        let fetched = self.request(hits);
        self.complete(&fetched)
    }

    /// Holds a lease of exactly `hits` from now on, that may be used for `hold` or until the first window ends.
    fn hold(&mut self, hits: u64, hold: Period) {
        let fetched = self.request(hits);
        let fetch = self.counter.fetch_mut();
        (fetch.want, fetch.hold) = (hits, hold);
        let command = fetched.command.as_ref().map(|command| {
            let op = match command.op.clone() {
                Op::Grant { report, least, .. } => Op::Grant { report, least, want: hits, hold },
                op => op,
            };
            Command { op, ..command.clone() }
        });
        assert_eq!(self.complete(&FetchCommand { command, want: hits, ..fetched }), hits);
    }

    /// Receives a hit every `every`, `times` times, without counting it. They are the demand.
    fn demand(&mut self, every: Period, times: u64) {
        for _ in 0..times {
            self.wait(every);
            self.counter.demand.record(1, self.now);
        }
        self.counter.last_check_at = self.now;
    }
}
