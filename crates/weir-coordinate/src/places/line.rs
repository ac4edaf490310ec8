//! What waits to be sent to one node: starts, whose decisions wait, and ends, whose senders do not.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use tokio::{sync::oneshot::Sender, time::Instant};

use super::counter::{PlaceCounter, PlaceOutcome};
use crate::client::Delivery;
use weir_limit::{CounterKey, Hits, Period, PlaceName, ReservedHits, Timestamp};
use weir_store::place_command::{PlaceCommand, PlaceOp};

/// The most calls with starts that are on their way. Starts that arrive meanwhile share the next one.
const MAX_CALLS: usize = 8;

/// The most commands of a call.
const MAX_COMMANDS: usize = 64;

/// How much more time the starts of one command may have than the first one, or less: little beside a budget.
const NEAR: Period = Period::from_millis(4);

pub(super) type StartReply = Result<PlaceOutcome, Delivery>;

pub(super) type Admission = Arc<OnceLock<bool>>;

#[derive(Debug, Default)]
pub(super) struct PlaceLine {
    starts: VecDeque<Start>,
    /// On their way.
    calls: usize,
    /// Whether a task will begin one.
    is_queued: bool,
    ends: VecDeque<PlaceEnd>,
    /// The counters with names to be added.
    untold: VecDeque<CounterKey>,
    /// Whether a task sends ends and names.
    is_sending: bool,
}

/// A request that waits for a place.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) counter: Arc<PlaceCounter>,
    /// None if nothing is taken.
    pub(super) name: Option<PlaceName>,
    pub(super) reserved: Hits,
    /// How long it waits, here and by the store's clock.
    pub(super) until: Instant,
    pub(super) valid_until: Timestamp,
    /// Whether it was admitted meanwhile, without the store; nothing if its caller waits, or is gone.
    pub(super) is_admitted: Admission,
    pub(super) reply: Sender<StartReply>,
}

/// A request that has ended.
#[derive(Debug)]
pub(super) struct PlaceEnd {
    pub(super) counter: Arc<PlaceCounter>,
    /// None for the newest one, which ends only while its caller waits: later it may be another one.
    pub(super) name: Option<PlaceName>,
    /// Whether its place may be unknown: it was sent before, or is undone.
    pub(super) is_doubtful: bool,
    /// Who gets what the request has reserved.
    pub(super) returns: ReturnPath,
}

/// Who gets the hits that a request has reserved.
#[derive(Debug)]
pub(super) enum ReturnPath {
    /// The caller, if it still waits, or else whoever asks what was [given up](super::counter::LocalPlaces::given_up).
    Caller(Sender<Option<ReservedHits>>),
    GivenUp,
    /// Nobody: who was not admitted has given them back.
    Nobody,
}

/// The starts of one command, and until when it is valid for all of them.
#[derive(Debug)]
pub(super) struct StartBatch {
    pub(super) starts: SmallVec<[Start; 1]>,
    pub(super) valid_until: Timestamp,
}

/// The ends of one command.
#[derive(Debug)]
pub(super) struct EndBatch {
    pub(super) ends: SmallVec<[PlaceEnd; 1]>,
}

// === impl PlaceLine ===

impl PlaceLine {
    pub(super) fn add_start(&mut self, start: Start) {
        self.starts.push_back(start);
    }

    /// Returns whether a task must be started that begins a call.
    pub(super) fn queue_call(&mut self) -> bool {
        !self.starts.is_empty() && self.calls < MAX_CALLS && !std::mem::replace(&mut self.is_queued, true)
    }

    /// Returns the starts of the queued call; none if there is none. Counts the call.
    pub(super) fn begin_call(&mut self) -> Option<Vec<StartBatch>> {
        self.is_queued = false;
        let (mut batches, now) = (Vec::<StartBatch>::new(), Instant::now());
        while let Some(start) = self.starts.pop_front() {
            // nobody waits for it any more
            if start.reply.is_closed() || start.until <= now {
                continue;
            }
            let valid_until = start.valid_until;
            if let Some(batch) = batches.iter_mut().find(|batch| batch.may_have(&start)) {
                batch.valid_until = batch.valid_until.min(valid_until);
                batch.starts.push(start);
            } else if batches.len() < MAX_COMMANDS {
                batches.push(StartBatch { starts: std::iter::once(start).collect(), valid_until });
            } else {
                self.starts.push_front(start);
                break;
            }
        }
        if batches.is_empty() {
            return None;
        }
        self.calls += 1;
        Some(batches)
    }

    pub(super) fn end_call(&mut self) {
        self.calls -= 1;
    }

    /// Returns the ends that were dropped: the oldest, if more than `most` wait.
    pub(super) fn add_ends(&mut self, ends: impl IntoIterator<Item = PlaceEnd>, most: usize) -> usize {
        self.ends.extend(ends);
        let dropped = self.ends.len().saturating_sub(most);
        self.ends.drain(..dropped);
        dropped
    }

    /// The counter has names to be added. Of more than `most` counters, those that are evicted are forgotten.
    pub(super) fn add_untold_one(
        &mut self,
        counter: CounterKey,
        most: usize,
        is_kept: impl Fn(CounterKey) -> bool,
    ) {
        self.untold.push_back(counter);
        if self.untold.len() > most {
            let mut seen = HashSet::<CounterKey, foldhash::fast::RandomState>::default();
            self.untold.retain(|key| seen.insert(*key) && is_kept(*key));
        }
    }

    /// The counters have names to be added.
    pub(super) fn add_untold(&mut self, counters: impl IntoIterator<Item = CounterKey>) {
        self.untold.extend(counters);
    }

    /// Returns whether a task must be started that sends ends and names.
    pub(super) fn begin_sending(&mut self) -> bool {
        !self.is_empty() && !std::mem::replace(&mut self.is_sending, true)
    }

    /// Returns the ends and the counters of the next call; the task ends if there are none.
    pub(super) fn next(&mut self) -> Option<(Vec<EndBatch>, Vec<CounterKey>)> {
        if self.is_empty() {
            self.is_sending = false;
            return None;
        }
        let mut batches = Vec::<EndBatch>::new();
        let mut places = HashMap::<CounterKey, usize, foldhash::fast::RandomState>::default();
        let sent = self.ends.drain(..self.ends.len().min(PlaceCommand::MAX_ENDED));
        for end in sent.filter(|end| !end.is_left()) {
            let place = *places.entry(end.counter.key).or_insert(batches.len());
            match batches.get_mut(place) {
                Some(batch) => batch.ends.push(end),
                None => batches.push(EndBatch { ends: std::iter::once(end).collect() }),
            }
        }
        let untold = self.untold.drain(..self.untold.len().min(MAX_COMMANDS)).collect();
        Some((batches, untold))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty() && self.untold.is_empty()
    }

    /// Returns whether nothing is to be sent that nobody waits for, nor on its way.
    pub(super) const fn is_done(&self) -> bool {
        !self.is_sending
    }
}

// === impl PlaceEnd ===

impl PlaceEnd {
    /// Returns whether nobody waits for the end of the newest request.
    fn is_left(&self) -> bool {
        self.name.is_none() && !matches!(&self.returns, ReturnPath::Caller(caller) if !caller.is_closed())
    }
}

// === impl StartBatch ===

impl StartBatch {
    fn first(&self) -> &Start {
        &self.starts[0]
    }

    /// A start with much less time would leave the others without an answer.
    fn may_have(&self, start: &Start) -> bool {
        let first = self.first();
        let is_near = |a: Timestamp, b: Timestamp| a.since(b).max(b.since(a)) <= NEAR;
        self.starts.len() < PlaceCommand::MAX_TAKEN
            && first.counter.key == start.counter.key
            && first.counter.limit == start.counter.limit
            && is_near(first.valid_until, start.valid_until)
    }

    pub(super) fn counter(&self) -> &Arc<PlaceCounter> {
        &self.first().counter
    }

    pub(super) fn command(&self) -> PlaceCommand {
        let (counter, valid_until) = (self.counter(), self.valid_until);
        let names = self.starts.iter().filter_map(|start| Some((start.name?, start.reserved))).collect();
        counter.command(PlaceOp::Take { names, most: counter.limit.most, valid_until })
    }
}

// === impl EndBatch ===

impl EndBatch {
    pub(super) fn counter(&self) -> &Arc<PlaceCounter> {
        &self.ends[0].counter
    }

    pub(super) fn command(&self) -> PlaceCommand {
        let counter = self.counter();
        // whose places nobody waits for: the store may hear of one after its end
        let marked = |name: PlaceName| if counter.is_unlimited() { name.by_fallback() } else { name };
        counter.command(PlaceOp::End(self.ends.iter().map(|end| end.name.map(marked)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::{Entry, KeyHasher};

    /// In an outage all of them wait, and others evict them meanwhile.
    #[test]
    fn counters_that_wait_are_forgotten_once_they_are_evicted() {
        let (mut line, hasher) = (PlaceLine::default(), KeyHasher::random());
        let keys =
            (0..1_000).map(|i| hasher.key("d", &[Entry { key: "k", value: &i.to_string() }], |_| None));
        let keys: Vec<CounterKey> = keys.collect();
        for key in keys.iter().chain(&keys) {
            line.add_untold_one(*key, 100, |key| keys[..50].contains(&key));
            assert!(line.untold.len() <= 100);
        }
        assert!(keys[..50].iter().all(|key| line.untold.contains(key)));
    }
}
