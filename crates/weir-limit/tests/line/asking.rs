//! A line that asks a store for its hits, over random schedules: callers come and leave, the store grants what it
//! likes, late.

use std::{
    collections::BTreeMap,
    sync::Arc,
    task::{Poll, Wake, Waker},
};

use proptest::{collection::vec, prelude::*};
use weir_limit::{
    Algorithm, Bucket, Hits, Period, Refill, ReservedSpan, SharedTiers, Tier, Timestamp,
    line::{Answer, Ask, AskingLine, Entered, QueuePosition, Rejection, Supply, Turns},
    part,
};

/// What happens next, after some milliseconds.
#[derive(Clone, Debug)]
enum Event {
    /// A caller of these hits comes, who waits for as many milliseconds.
    Enter(u64, u64),
    /// One of those that are there leaves, with an answer or without.
    Leave(prop::sample::Index),
    /// One of those that are there looks for its answer.
    Poll(prop::sample::Index),
    /// The store replies: with this share of what was asked for, for as many milliseconds, or the wait.
    Reply(u64, u64),
    /// The ask fails.
    Fail,
    Nothing,
}

struct Deaf;

impl Wake for Deaf {
    fn wake(self: Arc<Self>) {}
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        5 => (1..9_u64, 0..200_u64).prop_map(|(hits, wait)| Event::Enter(hits, wait)),
        2 => any::<prop::sample::Index>().prop_map(Event::Leave),
        3 => any::<prop::sample::Index>().prop_map(Event::Poll),
        6 => (0..=100_u64, 1..40_u64).prop_map(|(share, millis)| Event::Reply(share, millis)),
        1 => Just(Event::Fail),
        2 => Just(Event::Nothing),
    ];
    vec((prop_oneof![3 => Just(0_u64), 2 => 1..9_u64, 1 => 10..99_u64], event), 1..200)
}

fn tiers() -> impl Strategy<Value = SharedTiers> {
    let bucket = Bucket { burst: 12, refill: Refill::Continuous, strict: false };
    let algorithm = prop_oneof![
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::TokenBucket(bucket))
    ];
    algorithm.prop_map(|algorithm| [Tier::new(12, Period::from_millis(100), algorithm)].into_iter().collect())
}

fn ranks() -> impl Strategy<Value = part::InstanceRank> {
    (1..9_usize, proptest::option::of(0..9_u32))
        .prop_map(|(instances, rank)| part::InstanceRank::among(instances, rank))
}

/// The world around a line.
struct World {
    line: AskingLine,
    now: Timestamp,
    ask: Option<(Ask, Timestamp)>,
    /// Those that wait or have an answer to collect, with their hits and deadlines.
    callers: BTreeMap<QueuePosition, (u64, Timestamp)>,
    granted: u64,
    admitted: u64,
    returned: u64,
}

impl World {
    fn new(tiers: SharedTiers, instance: part::InstanceRank) -> Self {
        let mut line = AskingLine::new(tiers);
        line.set_turns(Turns { instance, seed: 7 });
        Self {
            line,
            now: Timestamp::from_secs(1_000),
            ask: None,
            callers: BTreeMap::new(),
            granted: 0,
            admitted: 0,
            returned: 0,
        }
    }

    /// Makes the turns until `end`, each at its instant.
    fn pass(&mut self, end: Timestamp) {
        let mut woken = Vec::new();
        for _ in 0..10_000 {
            let Some(timer) = self.line.timer().filter(|timer| *timer <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(timer);
            if let Some(ask) = self.line.turn(self.now, &mut woken) {
                assert!(self.ask.is_none(), "two asks at once");
                assert!(ask.least >= Hits(1) && ask.least <= ask.want);
                self.ask = Some((ask, self.now));
            }
            self.collect();
        }
        panic!("the line spins");
    }

    /// Takes what the line gives back.
    fn collect(&mut self) {
        self.returned += self.line.take_unused().iter().map(|unused| unused.hits.0).sum::<u64>();
        self.line.check_invariants(self.now);
    }

    fn supply(&mut self, supply: Option<Supply>) {
        self.granted += supply.as_ref().map_or(0, |supply| supply.hits.0);
        self.line.supply(supply, self.now, &mut Vec::new());
        self.collect();
    }

    fn act(&mut self, event: &Event) {
        let chosen = |index: &prop::sample::Index, callers: &BTreeMap<QueuePosition, _>| {
            (!callers.is_empty())
                .then(|| *callers.keys().nth(index.index(callers.len())).expect("one of them"))
        };
        match event {
            Event::Enter(hits, wait) => {
                let (hits, wait) = (Hits(*hits), Period::from_millis(*wait));
                let known = (None, Period::from_millis(3));
                match self.line.enter(self.now, hits, wait, true, known) {
                    Entered::Waits(position) => {
                        _ = self.callers.insert(position, (hits.0, self.now.after(wait)));
                    }
                    Entered::Rejected(rejection) => {
                        assert!(
                            matches!(rejection, Rejection::Timeout { retry_after } if retry_after > wait)
                        );
                    }
                    Entered::Admitted => panic!("it has no hits"),
                }
            }
            Event::Leave(index) => {
                let Some(position) = chosen(index, &self.callers) else { return };
                self.callers.remove(&position);
                self.line.leave(position, self.now, &mut Vec::new());
            }
            Event::Poll(index) => {
                let Some(position) = chosen(index, &self.callers) else { return };
                self.poll(position);
            }
            Event::Reply(share, millis) => {
                let Some((ask, asked_at)) = self.ask.take() else { return };
                let hits = ask.want.0 * share / 100;
                let hits = Hits(if hits < ask.least.0 { 0 } else { hits });
                let until = asked_at.after(Period::from_millis(*millis));
                let span = ReservedSpan { from: asked_at, until, is_reported: true };
                let wait = Period::from_millis(*millis);
                self.supply(Some(Supply { hits, until, span, wait, estimate: None }));
            }
            Event::Fail => {
                if self.ask.take().is_some() {
                    self.supply(None);
                }
            }
            Event::Nothing => {}
        }
        self.collect();
    }

    /// Looks for the answer to one caller.
    fn poll(&mut self, position: QueuePosition) {
        let Poll::Ready(answer) = self.line.poll(position, &Waker::from(Arc::new(Deaf))) else { return };
        let (hits, deadline) = self.callers.remove(&position).expect("it was there");
        match answer {
            Answer::Admitted(at) => {
                self.admitted += hits;
                assert!(at <= deadline.after(Period::from_millis(52)), "served late");
            }
            Answer::Rejected(Rejection::Timeout { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    /// No hit is lost or used twice, nobody sleeps for ever, and nobody is told late.
    #[test]
    fn every_hit_is_used_once_or_given_back(
        tiers in tiers(),
        instance in ranks(),
        events in events(),
    ) {
        let mut world = World::new(tiers, instance);
        for (millis, event) in &events {
            world.pass(world.now.after(Period::from_millis(*millis)));
            world.act(event);
        }
        // everybody is told
        if world.ask.take().is_some() {
            world.supply(None);
        }
        for _ in 0..40 {
            world.pass(world.now.after(Period::from_millis(20)));
            if world.ask.take().is_some() {
                world.supply(None);
            }
        }
        let positions: Vec<QueuePosition> = world.callers.keys().copied().collect();
        for position in positions {
            world.poll(position);
        }
        prop_assert!(world.callers.is_empty(), "{} callers sleep", world.callers.len());
        world.collect();
        // what came too late for a bucket to give back has flowed in again
        prop_assert!(world.admitted + world.returned <= world.granted);
        if matches!(world.line.tiers()[0].algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow) {
            prop_assert_eq!(world.admitted + world.returned, world.granted);
        }
        prop_assert!(world.line.is_unused());
    }
}

/// The hits of a reply go to the first ones, and a heavy one blocks those behind it.
#[test]
fn waiters_are_served_in_order() {
    let tier = Tier::fixed_window(12, Period::from_secs(1));
    let mut world = World::new([tier].into_iter().collect(), part::InstanceRank::ALONE);
    for hits in [1, 1, 9, 1] {
        world.act(&Event::Enter(hits, 60_000));
    }
    world.pass(world.now.after(Period::from_millis(5)));
    let (ask, _) = world.ask.expect("an ask");
    assert_eq!((ask.least, ask.want), (Hits(1), Hits(12)));
    world.act(&Event::Reply(50, 30));
    let positions: Vec<QueuePosition> = world.callers.keys().copied().collect();
    for position in positions {
        world.poll(position);
    }
    // of six hits two were used, and four are too few for the third one
    assert_eq!((world.admitted, world.returned, world.line.waiting()), (2, 4, 2));
}
