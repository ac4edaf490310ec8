//! Requests in flight, whose places the store keeps: it decides each start, in one operation.
//!
//! `line.rs` has what waits to be sent to a node, `counter.rs` what an instance knows of a counter, by which it decides
//! while the store does not reply, and `table.rs` all of these.
//!
//! A start waits within its budget. The store takes nothing after that, by its own clock, so that no end overtakes the
//! start; and what it has taken for a start that was not admitted is ended. Ends wait for nobody, but for what their
//! requests have reserved: they leave at once, one call at a time, and again until the store has them. What was admitted
//! without the store is added there, and so is a request without limit, of which it only remembers what it reserves.

mod counter;
mod line;
mod table;

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use self::{
    counter::{LocalPlaces, PlaceCounter, PlaceOutcome, UntoldPlace},
    line::{Admission, EndBatch, PlaceEnd, PlaceLine, ReturnPath, Start, StartBatch, StartReply},
    table::LocalPlaceTable,
};
use super::{
    Coordinated,
    client::{Delivery, RECHECK, StoreClient, sha256},
    modes::{DecisionContext, record_mode, recorded},
};
use weir_limit::{
    Basis, Capabilities, Coordination, CounterKey, Hits, InFlight, LimitCheck, OverLimitPolicy, Period,
    PlaceCheck, PlaceDecision, PlaceName, ReservedHits, Tier, Timestamp,
};
use weir_observe::PlaceStats;
use weir_store::{
    StoreError, TakeOptions, TakenPlaces,
    path::{path_of, shortened},
    place_command::{NamedHits, PlaceCommand, PlaceReply},
    remote::{Remote, RemoteError, StoreNode, Target},
};

/// The ends that may wait for a node, and the names to be added, for each counter that this instance may have.
const PER_COUNTER: usize = 4;

/// The parts in which all counters are looked over.
const SWEEP_STEPS: usize = 16;

/// The pause after a call that failed, and the longest one: each is twice as long.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long the last ends may take.
const FINAL: Duration = Duration::from_secs(2);

const FINAL_RETRY: Duration = Duration::from_millis(5);

pub(super) struct SharedPlaces<R> {
    table: LocalPlaceTable,
    lines: Mutex<BTreeMap<StoreNode, PlaceLine>>,
    client: Arc<StoreClient<R>>,
    /// Runs the calls. The threads that make decisions may end sooner.
    runtime: Handle,
}

/// A descriptor that asks for a place.
#[derive(Clone, Copy, Debug)]
pub struct PlaceAsked<'a> {
    /// The descriptor and its rule; its hits do not matter.
    pub check: &'a LimitCheck<'a>,
    /// The limit.
    pub limit: InFlight,
    /// Whether a place is taken if there is one.
    pub takes: bool,
    /// Where it is counted what becomes of places.
    pub stats: &'a Arc<PlaceStats>,
    /// The hits that the request has reserved. A place [without limit](InFlight::UNLIMITED) is there at once.
    pub reserved: Hits,
}

/// What becomes of what an ended request had reserved.
#[derive(Debug)]
pub enum EndedHits {
    /// It is known; none if it is not kept here or at the store.
    Known(Option<ReservedHits>),
    /// The store replies.
    Waits(oneshot::Receiver<Option<ReservedHits>>),
}

/// What a request has of one place until it is answered. If dropped, it is given back.
struct HeldPlace<'a, R: Remote> {
    places: &'a Arc<SharedPlaces<R>>,
    counter: Arc<PlaceCounter>,
    /// None if nothing is taken.
    name: Option<PlaceName>,
    reserved: Hits,
    state: HeldState,
}

enum HeldState {
    Nothing,
    Waits(oneshot::Receiver<StartReply>),
    Taken,
    ByFallback,
}

// === impl SharedPlaces ===

impl<R: Remote> SharedPlaces<R> {
    /// Must be called within a tokio runtime.
    pub(super) fn new(client: Arc<StoreClient<R>>) -> Arc<Self> {
        let max = client.settings.max_counters;
        let table = LocalPlaceTable::new(max, max.saturating_mul(PER_COUNTER));
        Arc::new(Self { table, lines: Mutex::default(), client, runtime: Handle::current() })
    }

    pub(super) async fn sweep(self: Arc<Self>) {
        loop {
            sleep((self.client.settings.sweep / SWEEP_STEPS as u64).into()).await;
            self.table.sweep(SWEEP_STEPS, self.client.time().now);
        }
    }

    /// To be called after the last request. Sends what the store does not know, for a while.
    pub(super) async fn close(&self) {
        let all = async {
            while !self.lines.lock().values().all(PlaceLine::is_done) {
                sleep(FINAL_RETRY).await;
            }
        };
        let _ = timeout(FINAL, all).await;
    }

    fn counter(&self, check: &LimitCheck<'_>, limit: InFlight, stats: &Arc<PlaceStats>) -> Arc<PlaceCounter> {
        let new = || {
            let path = shortened(path_of(check), sha256);
            let target = Target {
                path: path.clone(),
                // for the node alone, and whether it replies: nothing is counted there
                tiers: [Tier::fixed_window(1, Period::from_secs(60))].into(),
                over_limit_policy: OverLimitPolicy::Ignore,
            };
            let (path, target) = (path.into(), Arc::new(target));
            let stats = Arc::clone(stats);
            LocalPlaces::new(Arc::new(PlaceCounter { key: check.key, path, target, limit, stats }))
        };
        self.table.with(check.key, new, |places| places.follow(limit, stats))
    }

    /// Returns how many places of this age the store gives up.
    async fn free(&self, counter: &Arc<PlaceCounter>, older_than: Period) -> Result<u32, RemoteError> {
        let command = PlaceCommand { give_up_after: older_than, ..counter.add(Vec::new()) };
        let (node, about) = (self.node(counter), Arc::clone(&counter.target));
        let reply = self.call(node, about, vec![command], 1).await.remove(0)?;
        self.with(counter, |places| places.hear(&reply));
        Ok(reply.given_up)
    }

    /// `act` gets the counter, which is new if it was evicted meanwhile.
    fn with<T>(&self, counter: &Arc<PlaceCounter>, act: impl FnOnce(&mut LocalPlaces) -> T) -> T {
        let new = || LocalPlaces::new(Arc::clone(counter));
        self.table.with(counter.key, new, act)
    }

    fn node(&self, counter: &PlaceCounter) -> StoreNode {
        self.client.remote.node(&counter.target, self.client.time().now)
    }

    // starts

    /// The instant of the store's clock after which it takes nothing, none too late.
    fn valid_until(&self, until: Instant) -> Timestamp {
        if !self.client.store_clock.is_measured() {
            return Timestamp::from_nanos(u64::MAX);
        }
        let (time, left) = (self.client.time(), until.saturating_duration_since(Instant::now()));
        time.now.after(left.into()).before(time.latest.since(time.now))
    }

    /// Waits for the store, or decides without it.
    async fn take(
        self: &Arc<Self>,
        held: &mut HeldPlace<'_, R>,
        asked: &PlaceAsked<'_>,
        context: DecisionContext<'_>,
    ) -> PlaceDecision {
        let reserved = held.reserved;
        if held.counter.is_unlimited() {
            return self.open(held);
        }
        record_mode(context.record, Coordination::Strict);
        let mut calls = 0;
        let is_admitted = Admission::default();
        if !self.client.is_unavailable_for(&held.counter.target, context.now) {
            let (reply, receiver) = oneshot::channel();
            held.state = HeldState::Waits(receiver);
            let node = self.node(&held.counter);
            let start = Start {
                counter: Arc::clone(&held.counter),
                name: held.name,
                reserved,
                until: context.until,
                valid_until: self.valid_until(context.until),
                is_admitted: Arc::clone(&is_admitted),
                reply,
            };
            self.lines.lock().entry(node).or_default().add_start(start);
            self.send_starts(node);
            let replied = {
                let replied = pin!(held.replied(context.until));
                recorded(context, 1, replied).await
            };
            match replied {
                Ok(outcome) => return self.decided(held, outcome),
                Err(Delivery::NotApplied) => {}
                Err(_) => calls = 1,
            }
        }
        let (policy, instances) = (self.client.failure_policy(asked.check), self.client.instances());
        let (counter, name) = (Arc::clone(&held.counter), held.name);
        let name = (name, self.table.has_room());
        let decided = self.with(&counter, |places| {
            // replies are given under the lock
            match held.reply_after_all() {
                Some(Ok(outcome)) => return Ok(outcome),
                Some(Err(Delivery::NotApplied)) => calls = 0,
                _ => {}
            }
            let place = UntoldPlace::new(reserved, calls);
            let outcome = places.decide(name, place, policy, instances, self.client.time().now);
            let _ = is_admitted.set(outcome.has_place);
            Err((outcome, places.begin_telling()))
        });
        let (PlaceOutcome { has_place, before }, tells) = match decided {
            Ok(outcome) => return self.decided(held, outcome),
            Err(decided) => decided,
        };
        held.state = if has_place { HeldState::ByFallback } else { HeldState::Nothing };
        held.count_start(has_place);
        if tells {
            self.tell(&counter);
        }
        self.client.metrics.decisions.fallback.add(1);
        if let Some(record) = context.record {
            record.set_fallback();
        }
        PlaceDecision { over: !has_place, before, basis: Basis::Fallback }
    }

    /// Has a place that nobody is refused.
    fn open(self: &Arc<Self>, held: &mut HeldPlace<'_, R>) -> PlaceDecision {
        let (counter, has_room) = (Arc::clone(&held.counter), self.table.has_room());
        let (before, tells) = self.with(&counter, |places| {
            let before = places.places();
            if let Some(name) = held.name {
                places.open((name, has_room), UntoldPlace::new(held.reserved, 0));
            }
            (before, places.begin_telling())
        });
        held.state = HeldState::ByFallback;
        held.count_start(true);
        if tells {
            self.tell(&counter);
        }
        PlaceDecision { over: false, before, basis: Basis::Counters }
    }

    fn decided(
        &self,
        held: &mut HeldPlace<'_, R>,
        PlaceOutcome { has_place, before }: PlaceOutcome,
    ) -> PlaceDecision {
        held.state = if has_place { HeldState::Taken } else { HeldState::Nothing };
        held.count_start(has_place);
        self.client.metrics.decisions.waited.add(1);
        PlaceDecision { over: !has_place, before, basis: Basis::Counters }
    }

    fn send_starts(self: &Arc<Self>, node: StoreNode) {
        if self.lines.lock().entry(node).or_default().queue_call() {
            drop(self.runtime.spawn(Arc::clone(self).call_starts(node)));
        }
    }

    /// Starts that have arrived before this task runs share its call. Before a start, the store hears of what the fallback
    /// has admitted.
    async fn call_starts(self: Arc<Self>, node: StoreNode) {
        let Some(batches) = self.lines.lock().entry(node).or_default().begin_call() else { return };
        self.send_starts(node);
        let now = self.client.time().now;
        let untold =
            batches.iter().filter_map(|batch| self.untold(batch.counter().key, PlaceCommand::MAX_ENDED, now));
        let told: Vec<(Arc<PlaceCounter>, Vec<NamedHits>)> = untold.collect();
        let adds = told.iter().map(|(counter, names)| counter.add(names.clone()));
        let commands = adds.chain(batches.iter().map(StartBatch::command)).collect();
        let about = Arc::clone(&batches[0].counter().target);
        let mut replies = self.call(node, about, commands, told.len() + batches.len()).await.into_iter();
        for (told, reply) in told.into_iter().zip(&mut replies) {
            self.told(told, reply);
        }
        for (batch, reply) in batches.into_iter().zip(replies) {
            self.answer(batch, &reply);
        }
        self.lines.lock().entry(node).or_default().end_call();
        self.send_starts(node);
    }

    /// Gives the starts of `batch` their outcomes, and ends those that were not admitted.
    fn answer(
        self: &Arc<Self>,
        StartBatch { starts, valid_until }: StartBatch,
        reply: &Result<PlaceReply, RemoteError>,
    ) {
        let counter = Arc::clone(&starts[0].counter);
        let mut undone = Vec::new();
        let mut unknown = Vec::new();
        self.with(&counter, |places| {
            let late = |reply: &PlaceReply| reply.taken == 0 && reply.now > valid_until;
            let outcome = match reply {
                Ok(reply) => {
                    places.hear(reply);
                    // the store has decided nothing
                    if late(reply) { Err(Delivery::NotApplied) } else { Ok(reply) }
                }
                Err(error) => Err(Delivery::of_error(error)),
            };
            let mut taken = 0;
            for start in starts {
                let outcome = outcome.map(|reply| {
                    let has_place = match start.name {
                        Some(_) => taken < reply.taken,
                        None => reply.places < counter.limit.most,
                    };
                    let before = if has_place && start.name.is_some() {
                        taken += 1;
                        reply.places.saturating_sub(reply.taken) + taken - 1
                    } else {
                        reply.places
                    };
                    PlaceOutcome { has_place, before }
                });
                let Start { name: Some(name), is_admitted, until, reply, .. } = start else {
                    let _ = start.reply.send(outcome);
                    continue;
                };
                let is_heard = reply.send(outcome).is_ok();
                let is_admitted_here = is_admitted.get() == Some(&true);
                match outcome {
                    Ok(PlaceOutcome { has_place: true, .. }) if is_admitted_here => places.told(name),
                    Ok(PlaceOutcome { has_place: true, .. }) if !is_heard => {
                        counter.stats.start();
                        counter.stats.undo();
                        undone.push((name, is_admitted));
                    }
                    Ok(_) | Err(Delivery::NotApplied) => places.not_told(name, false),
                    Err(_) if is_admitted_here => places.not_told(name, true),
                    Err(_) => unknown.push((name, is_admitted, until)),
                }
            }
        });
        self.undo(&counter, undone);
        if let Some(until) = unknown.iter().map(|(.., until)| *until).max() {
            let places = Arc::clone(self);
            drop(self.runtime.spawn(async move {
                // after that, the store takes nothing
                sleep_until(until).await;
                let shard = places.table.lock(counter.key);
                unknown.retain(|(_, is_admitted, _)| is_admitted.get() != Some(&true));
                drop(shard);
                let unknown = unknown.into_iter().map(|(name, is_admitted, _)| (name, is_admitted));
                places.undo(&counter, unknown.collect());
            }));
        }
    }

    // ends

    /// Ends what the store may have taken for requests that were not admitted. Their callers give back what they have
    /// reserved, unless they are gone.
    fn undo(self: &Arc<Self>, counter: &Arc<PlaceCounter>, names: Vec<(PlaceName, Admission)>) {
        if !names.is_empty() {
            let end = |(name, is_admitted): (PlaceName, Admission)| PlaceEnd {
                counter: Arc::clone(counter),
                name: Some(name),
                is_doubtful: true,
                returns: is_admitted.get().map_or(ReturnPath::GivenUp, |_| ReturnPath::Nobody),
            };
            self.add_ends(self.node(counter), names.into_iter().map(end));
        }
    }

    /// A request has ended, the newest one without a name, or was not admitted after all if it `is_undone`.
    fn end(
        self: &Arc<Self>,
        counter: Arc<PlaceCounter>,
        name: Option<PlaceName>,
        awaits: bool,
        is_undone: bool,
    ) -> EndedHits {
        let now = self.client.time().now;
        let is_first = name.is_none_or(|name| self.table.remember(counter.key, name));
        let is_named = name.is_some();
        let ended = self.with(&counter, |places| match name {
            Some(name) => Some((name, places.end(name, is_first, now)?)),
            None => places.end_newest(now),
        });
        if let Some((name, hits)) = ended {
            if !is_undone && is_named {
                counter.stats.end(now.since(name.start()).into());
            } else if !is_undone {
                counter.stats.end_newest();
            }
            return EndedHits::Known(Some(ReservedHits { hits, start: name.start() }));
        }
        let is_old = name.is_some_and(|name| name.start().after(counter.limit.give_up_after) <= now);
        let node = self.node(&counter);
        if is_old {
            // the store has given it up
            counter.stats.end_unknown();
            return EndedHits::Known(None);
        }
        let waits = awaits && !self.client.is_unavailable_at(node);
        let (returns, ended) = if waits {
            let (caller, receiver) = oneshot::channel();
            (ReturnPath::Caller(caller), EndedHits::Waits(receiver))
        } else if name.is_none() {
            // later, the newest is another one
            return EndedHits::Known(None);
        } else {
            let is_returned = is_undone && !awaits;
            let returns = if is_returned { ReturnPath::Nobody } else { ReturnPath::GivenUp };
            (returns, EndedHits::Known(None))
        };
        self.add_ends(node, [PlaceEnd { counter, name, is_doubtful: is_undone || !is_first, returns }]);
        ended
    }

    fn add_ends(self: &Arc<Self>, node: StoreNode, ends: impl IntoIterator<Item = PlaceEnd>) {
        let most = self.client.settings.max_counters.saturating_mul(PER_COUNTER);
        let dropped = self.lines.lock().entry(node).or_default().add_ends(ends, most);
        self.client.metrics.places.ends_dropped.add(dropped as u64);
        self.send_ends(node);
    }

    /// Has the names of `counter` added at the store.
    fn tell(self: &Arc<Self>, counter: &PlaceCounter) {
        let (node, most) = (self.node(counter), 2 * self.client.settings.max_counters);
        let is_kept = |key| self.table.with_existing(key, |_| ()).is_some();
        self.lines.lock().entry(node).or_default().add_untold_one(counter.key, most, is_kept);
        self.send_ends(node);
    }

    fn send_ends(self: &Arc<Self>, node: StoreNode) {
        if self.lines.lock().entry(node).or_default().begin_sending() {
            drop(self.runtime.spawn(send_all(Arc::downgrade(self), node)));
        }
    }

    /// Sends one call of ends and names. None if there is nothing to send, or else whether the store has all of it.
    async fn send_some(self: &Arc<Self>, node: StoreNode) -> Option<bool> {
        let (ends, untold) = self.lines.lock().entry(node).or_default().next()?;
        let now = self.client.time().now;
        let mut told: Vec<(Arc<PlaceCounter>, Vec<NamedHits>)> = Vec::new();
        let (mut left, mut later) = (PlaceCommand::MAX_ENDED, Vec::new());
        for key in untold {
            if left == 0 {
                later.push(key);
            } else if let Some((counter, names)) = self.untold(key, left, now) {
                left -= names.len();
                told.push((counter, names));
            }
        }
        let adds = told.iter().map(|(counter, names)| counter.add(names.clone()));
        let commands: Vec<PlaceCommand> = ends.iter().map(EndBatch::command).chain(adds).collect();
        let mut counters = ends.iter().map(EndBatch::counter).chain(told.iter().map(|(counter, _)| counter));
        let Some(about) = counters.next().map(|counter| Arc::clone(&counter.target)) else {
            self.lines.lock().entry(node).or_default().add_untold(later);
            return Some(true);
        };
        let count = commands.len();
        let mut replies = self.call(node, about, commands, count).await.into_iter();
        let (mut again, mut has_all) = (Vec::new(), true);
        for (batch, reply) in ends.into_iter().zip(&mut replies) {
            has_all &= reply.is_ok();
            self.ended(batch, reply, &mut again);
        }
        for (told, reply) in told.into_iter().zip(replies) {
            has_all &= reply.is_ok();
            let key = told.0.key;
            later.extend(self.told(told, reply).then_some(key));
        }
        self.lines.lock().entry(node).or_default().add_untold(later);
        self.add_ends(node, again);
        Some(has_all)
    }

    /// Returns names to be added; none if there are none, so that the counter waits no longer.
    fn untold(
        &self,
        key: CounterKey,
        most: usize,
        now: Timestamp,
    ) -> Option<(Arc<PlaceCounter>, Vec<NamedHits>)> {
        let untold = self.table.with_existing(key, |places| {
            let names = places.untold(most, now);
            places.is_queued &= !names.is_empty() || places.is_silent(now);
            (places.is_queued || !names.is_empty()).then(|| (Arc::clone(&places.counter), names))
        });
        untold.flatten()
    }

    /// Returns whether there are more to be added.
    fn told(
        &self,
        (counter, names): (Arc<PlaceCounter>, Vec<NamedHits>),
        reply: Result<PlaceReply, RemoteError>,
    ) -> bool {
        self.with(&counter, |places| {
            for (name, _) in names {
                match &reply {
                    Ok(_) => places.told(name),
                    Err(error) => places.not_told(name, !error.is_definitely_not_applied()),
                }
            }
            if let Ok(reply) = reply {
                places.hear(&reply);
            }
            places.is_queued &= places.untold_names() > 0;
            places.is_queued
        })
    }

    fn ended(
        &self,
        EndBatch { ends }: EndBatch,
        reply: Result<PlaceReply, RemoteError>,
        again: &mut Vec<PlaceEnd>,
    ) {
        let now = self.client.time().now;
        let mut reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                let is_unknown = !error.is_definitely_not_applied();
                let is_kept = |end: &PlaceEnd| {
                    let age = end.counter.limit.give_up_after;
                    end.name.is_some_and(|name| name.start().after(age) > now)
                };
                let ends = ends.into_iter().filter(is_kept);
                again.extend(ends.map(|end| PlaceEnd { is_doubtful: end.is_doubtful || is_unknown, ..end }));
                return;
            }
        };
        let counter = Arc::clone(&ends[0].counter);
        // of some that are unknown the store does not say which
        let mut unknown = ends.len().saturating_sub(reply.ended as usize);
        let (are_all_known, mut late) = (unknown == 0, Vec::new());
        let mut returned = std::mem::take(&mut reply.ended_hits);
        let (named, newest): (Vec<PlaceEnd>, _) = ends.into_iter().partition(|end| end.name.is_some());
        for PlaceEnd { name, is_doubtful, returns, .. } in named.into_iter().chain(newest) {
            // the newest ones are the last
            let is_its = |its: &NamedHits| name.is_none_or(|name| name.without_flags() == its.0);
            let ended = returned.iter().position(is_its).map(|found| returned.remove(found));
            let ended = ended.or(name.filter(|_| are_all_known).map(|name| (name, Hits(0))));
            if let Some((ended, hits)) = ended {
                let is_heard = match returns {
                    ReturnPath::Caller(caller) => {
                        caller.send(Some(ReservedHits { hits, start: ended.start() })).is_ok()
                    }
                    ReturnPath::GivenUp => false,
                    ReturnPath::Nobody => true,
                };
                if !is_heard {
                    late.push((ended, hits));
                }
            }
            match ended.map(|(name, _)| name).or(name) {
                Some(_) if name.is_none() && !is_doubtful => counter.stats.end_newest(),
                Some(name) if !is_doubtful && (ended.is_some() || unknown == 0) => {
                    counter.stats.end(now.since(name.start()).into());
                }
                Some(_) if !is_doubtful => {
                    unknown -= 1;
                    counter.stats.end_unknown();
                }
                _ => {}
            }
        }
        self.with(&counter, |places| {
            places.hear(&reply);
            places.give_up(&late);
        });
    }

    /// Waits for the replies, one for each command.
    async fn call(
        &self,
        node: StoreNode,
        about: Arc<Target>,
        commands: Vec<PlaceCommand>,
        count: usize,
    ) -> Vec<Result<PlaceReply, RemoteError>> {
        match self.client.call_places(node, about, commands).await {
            Ok(replies) => replies.replies,
            Err(error) => vec![Err(error); count],
        }
    }
}

/// Sends ends and names to `node` until there are none.
async fn send_all<R: Remote>(places: Weak<SharedPlaces<R>>, node: StoreNode) {
    let mut pause = Duration::ZERO;
    loop {
        // only for its time: a store may be away for long
        let Some(places) = places.upgrade() else { return };
        if places.client.is_unavailable_at(node) {
            pause = RECHECK.into();
        } else {
            match places.send_some(node).await {
                None => return,
                Some(true) => pause = Duration::ZERO,
                Some(false) => pause = (pause * 2).clamp(PAUSE, LONGEST_PAUSE),
            }
        }
        drop(places);
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
}

// === impl HeldPlace ===

impl<R: Remote> HeldPlace<'_, R> {
    /// The error is that of a start that the store will not take any more.
    async fn replied(&mut self, until: Instant) -> StartReply {
        let HeldState::Waits(receiver) = &mut self.state else { return Err(Delivery::NotApplied) };
        match timeout_at(until, receiver).await {
            Ok(Ok(Err(Delivery::NotApplied)) | Err(_)) => Err(Delivery::NotApplied),
            Ok(Ok(Err(delivery))) => {
                sleep_until(until).await;
                Err(delivery)
            }
            Ok(Ok(Ok(outcome))) => Ok(outcome),
            Err(_) => Err(Delivery::Unknown),
        }
    }

    fn count_start(&self, has_place: bool) {
        if has_place && self.name.is_some() {
            self.counter.stats.start();
        }
    }

    fn reply_after_all(&mut self) -> Option<StartReply> {
        let HeldState::Waits(receiver) = &mut self.state else { return None };
        receiver.close();
        receiver.try_recv().ok()
    }
}

impl<R: Remote> Drop for HeldPlace<'_, R> {
    fn drop(&mut self) {
        let Some(name) = self.name else { return };
        let is_taken = match &mut self.state {
            HeldState::Nothing => false,
            HeldState::Taken => true,
            HeldState::Waits(_) => {
                // replies are given under the lock
                let _shard = self.places.table.lock(self.counter.key);
                let is_taken =
                    self.reply_after_all().is_some_and(|reply| reply.is_ok_and(|outcome| outcome.has_place));
                self.count_start(is_taken);
                is_taken
            }
            HeldState::ByFallback => {
                self.counter.stats.undo();
                // nobody waits for a reply
                let ended = self.places.end(Arc::clone(&self.counter), Some(name.by_fallback()), true, true);
                if let EndedHits::Known(Some(reserved)) = ended {
                    self.places.with(&self.counter, |places| places.give_up(&[(name, reserved.hits)]));
                }
                false
            }
        };
        if is_taken {
            self.counter.stats.undo();
            self.places.undo(&self.counter, vec![(name, Admission::default())]);
        }
    }
}

// === impl Coordinated ===

impl<R: Remote> Coordinated<R> {
    /// Returns whether the store keeps the places of `check`. Otherwise this instance does.
    pub fn shares_places(&self, check: &LimitCheck<'_>) -> bool {
        let is_local = match check.rule.coordination() {
            Some(mode) => mode == Coordination::Local,
            None => self.client.settings.coordination == Coordination::Local,
        };
        !is_local && self.remote().shared_store().capabilities == Capabilities::All
    }

    /// Takes a place for each of `asked` that takes one and has room; all of them are given back if the future is dropped.
    /// `serial` becomes a part of the name.
    pub async fn take_shared_places(
        &self,
        asked: &[PlaceAsked<'_>],
        serial: u64,
        now: Timestamp,
        options: TakeOptions<'_>,
    ) -> TakenPlaces {
        let context = self.context(now, options);
        let name = PlaceName::new(self.client.time_at(now).now, serial, false);
        // descriptors of one counter have one place
        let first = |i: usize| asked[..i].iter().position(|other| other.check.key == asked[i].check.key);
        let held = asked.iter().enumerate().filter(|(i, _)| first(*i).is_none()).map(|(_, one)| {
            let counter = self.places.counter(one.check, one.limit, one.stats);
            // a check beside a start, too
            let takes = |other: &PlaceAsked<'_>| other.takes && other.check.key == one.check.key;
            let name = asked.iter().any(&takes).then_some(name);
            // which remembers what all of them have reserved
            let all = asked.iter().filter(|other| takes(other));
            let reserved = all.fold(Hits(0), |all, other| all.plus(other.reserved));
            (one, HeldPlace { places: &self.places, counter, name, reserved, state: HeldState::Nothing })
        });
        let mut held: SmallVec<[(&PlaceAsked<'_>, HeldPlace<'_, R>); 2]> = held.collect();
        let taking = held.iter_mut().map(|(asked, held)| self.places.take(held, asked, context));
        let mut taken = join_all(taking).await.into_iter();
        let mut decisions: SmallVec<[PlaceDecision; 2]> = SmallVec::new();
        for i in 0..asked.len() {
            let decision = first(i).map(|first| decisions[first]).or_else(|| taken.next());
            decisions.extend(decision);
        }
        let taken = || held.iter().filter(|(_, held)| held.name.is_some());
        let by_fallback = |held: &HeldPlace<'_, R>| matches!(held.state, HeldState::ByFallback);
        let is_flagged = taken().any(|(_, held)| by_fallback(held) && !held.counter.is_unlimited());
        for (_, held) in &mut held {
            if is_flagged && held.name.is_some() && matches!(held.state, HeldState::Taken) {
                // its end will count as that of a request of the fallback
                let at = self.client.time().now;
                self.places.with(&held.counter, |places| places.count_flagged(at));
            }
            held.state = HeldState::Nothing;
        }
        TakenPlaces { name: if is_flagged { name.by_fallback() } else { name }, decisions }
    }

    /// Frees the place of `name`, or the newest one, of a request that has ended or, if it `is_undone`, was not admitted after
    /// all. The store frees it later; what it had reserved is for the caller, if that `awaits` it, or else is
    /// [given up](Self::shared_given_up), unless it `is_undone`.
    pub fn end_shared_place(
        &self,
        check: &LimitCheck<'_>,
        limit: InFlight,
        stats: &Arc<PlaceStats>,
        (name, awaits, is_undone): (Option<PlaceName>, bool, bool),
    ) -> EndedHits {
        if is_undone {
            stats.undo();
        }
        self.places.end(self.places.counter(check, limit, stats), name, awaits, is_undone)
    }

    /// [`Store::given_up`](weir_store::Store::given_up) of places that the store keeps.
    pub fn shared_given_up(
        &self,
        check: &LimitCheck<'_>,
        limit: InFlight,
        stats: &Arc<PlaceStats>,
    ) -> Vec<ReservedHits> {
        let counter = self.places.counter(check, limit, stats);
        let now = self.client.time().now;
        let asks = !self.client.is_unavailable_for(&counter.target, now);
        let (given_up, asks) = self.places.with(&counter, |places| places.given_up(asks, now));
        if asks {
            self.places.tell(&counter);
        }
        given_up
    }

    /// Has the store give up the places of `check` of this age. Returns their number.
    pub(super) async fn free_shared_places(
        &self,
        check: &PlaceCheck<'_>,
        stats: &Arc<PlaceStats>,
        older_than: Period,
    ) -> Result<u64, StoreError> {
        let counter = self.places.counter(&check.as_limit_check(), check.limit, stats);
        let mut freed = 0;
        loop {
            let given_up = self.places.free(&counter, older_than).await;
            let given_up = given_up.map_err(|error| StoreError::Unavailable(error.to_string()))?;
            freed += u64::from(given_up);
            // at most so many at a time
            if (given_up as usize) < PlaceCommand::MAX_ENDED {
                return Ok(freed);
            }
        }
    }
}
