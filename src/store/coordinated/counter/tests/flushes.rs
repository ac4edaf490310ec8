//! When a flush is due, and for how long hits may be held.

use super::*;
use crate::store::coordinated::counter::{
    Urgency,
    schedule::FlushSchedule,
    tiers::{has_flowed_back, hold, lone_hold},
    usage::UsageRate,
};

const NANO: Period = Period::from_nanos(1);

fn seconds(seconds: u64) -> Period {
    Period::from_secs(seconds)
}

/// A pause is a fiftieth of the time to the limit: at least the interval, at most ten of them, or a second.
#[test]
fn a_pause_is_a_part_of_the_time_to_the_limit() {
    for (interval, left, pause) in [
        (100, 0, 100),
        (100, 4_000, 100),
        (100, 10_000, 200),
        (100, 49_000, 980),
        (100, 900_000, 1_000),
        (20, 900_000, 200),
        (3_000, 900_000, 3_000),
    ] {
        let mut schedule = FlushSchedule::new(millis(interval));
        assert_eq!((schedule.pause(), schedule.interval()), (millis(interval), millis(interval)));
        schedule.plan(millis(left), Period::MAX, &[fixed(100, 1)]);
        assert_eq!(
            (schedule.pause(), schedule.interval()),
            (millis(pause), millis(interval)),
            "{left} ms left"
        );
    }
}

#[test]
fn a_flush_is_early_after_a_third_of_the_time_to_the_limit() {
    let mut schedule = FlushSchedule::new(millis(100));
    assert!(!schedule.is_early(None, START.after(seconds(9))), "nothing is known yet");
    for (left, early, is_close) in
        [(30, 10, true), (150, 50, true), (297, 99, true), (300, 100, false), (4_000, 100, false)]
    {
        schedule.plan(millis(left), Period::MAX, &[fixed(100, 1)]);
        let early = START.after(millis(early));
        assert!(
            !schedule.is_early(Some(START), Timestamp::from_nanos(early.as_nanos() - 1)),
            "{left} ms left"
        );
        assert!(schedule.is_early(Some(START), early), "{left} ms left");
        assert_eq!(schedule.is_close(), is_close, "{left} ms left");
    }
    schedule.plan(millis(10_000), Period::MAX, &[fixed(100, 1)]);
    assert!(!schedule.is_early(Some(START), START.after(seconds(9))), "the limit is far away");
}

/// In a long pause an instance takes twice an even part of a fiftieth of the rest at most. A single hit is no burst.
#[test]
fn a_burst_in_a_long_pause_outruns_its_plan() {
    let mut schedule = FlushSchedule::new(millis(100));
    assert!(!schedule.is_outrun(900, 1_000), "the pause is no longer than the interval");
    schedule.plan(millis(20_000), Period::MAX, &[fixed(100, 1)]);
    for (part, most) in [(1_000, 40), (500, 20), (60, 2), (10, 1), (0, 1)] {
        assert!(!schedule.is_outrun(most, part), "{most} of {part}");
        assert!(schedule.is_outrun(most + 1, part), "{} of {part}", most + 1);
    }
}

struct Measured {
    rate: UsageRate,
    replies: u8,
}

impl Measured {
    fn new() -> Self {
        Self { rate: UsageRate::new(START), replies: 0 }
    }

    /// Records a reply of three instances.
    fn record(&mut self, used: u64, own: u64, interval: Period, last: Option<Timestamp>, now: Timestamp) {
        self.rate.record(&mut self.replies, used, 3 * own, interval, last, now);
    }
}

/// In tenths of a second, for 1,000 hits.
fn tenths(Measured { rate, .. }: &Measured) -> u64 {
    (rate.time_for(1_000).as_nanos() + 50_000_000) / 100_000_000
}

#[test]
fn the_rate_of_all_instances_follows_from_the_store_s_counts() {
    let (mut rate, interval) = (Measured::new(), millis(100));
    assert_eq!(rate.rate.time_for(1), Period::MAX);
    let (mut used, mut now, mut last) = (700, START, None);
    let mut reply = |rate: &mut Measured, hits: u64, own, elapsed| {
        now = now.after(millis(elapsed));
        used += hits;
        rate.record(used, own, interval, last, now);
        last = Some(now);
        tenths(rate)
    };
    // at first the others are assumed to have taken as many as this one; what was counted before does not matter
    assert_eq!(reply(&mut rate, 0, 10, 200), 67);
    // a higher rate applies at once: 300 a second, if the others are as busy, and 500 if they are busier
    assert_eq!(reply(&mut rate, 10, 10, 100), 33);
    assert_eq!(reply(&mut rate, 50, 10, 100), 20);
    // a lower one by a quarter: 3/4 of 500 and 1/4 of 300
    assert_eq!(reply(&mut rate, 10, 10, 100), 22);
    // the fifth reply is used unchanged: 3/4 of 450 and 1/4 of 100
    assert_eq!(reply(&mut rate, 10, 10, 100), 28);
    // without hits, or in a new window, nothing is learnt
    assert_eq!(reply(&mut rate, 0, 0, 100), 28);
    rate.record(5, 0, interval, Some(START), START.after(seconds(9)));
    assert_eq!(tenths(&rate), 28);
}

/// A counter may have several replies within the first interval, before all instances have reported.
#[test]
fn the_others_are_assumed_to_be_as_busy_during_the_first_interval() {
    for (interval, expected) in [(10, 50), (10_000, 17)] {
        let mut rate = Measured::new();
        for i in 1..=9 {
            let last = (i > 1).then(|| START.after(millis(20 * (i - 1))));
            rate.record(0, 0, millis(interval), last, START.after(millis(20 * i)));
        }
        rate.record(4, 4, millis(interval), Some(START.after(millis(180))), START.after(millis(200)));
        assert_eq!(tenths(&rate), expected, "interval of {interval} ms");
    }
}

/// Two replies may be of one instant of the store, and no reply may say anything.
#[test]
fn a_rate_that_is_not_known_plans_nothing() {
    let mut rate = Measured::new();
    assert_eq!(rate.rate.time_for(0), Period::MAX);
    rate.record(10, 10, millis(100), Some(START), START);
    assert_eq!(rate.rate.time_for(1_000), Period::MAX);
}

fn urgency(fixture: &Fixture) -> Urgency {
    fixture.counter.urgency(Period::default(), millis(10), fixture.now)
}

/// While an instance does not know the others, hits are sent at once if all may take a sixteenth of the limit, or the
/// others a 256th; and with the next batch if they may take a hundredth.
#[test]
fn a_first_flush_is_as_urgent_as_the_limit_is_near() {
    use Urgency::{Interval, Now, Pause, Tick};
    for (limit, instances, hits, expected) in [
        (1_000, 1, 9, Interval),
        (1_000, 1, 10, Tick),
        (1_000, 1, 62, Tick),
        (1_000, 1, 63, Now),
        (1_000, 4, 1, Interval),
        (1_000, 4, 2, Now),
        (10_000, 2, 39, Interval),
        (10_000, 2, 40, Now),
        (768, 4, 1, Now),
        (769, 4, 1, Interval),
    ] {
        let mut fixture = Fixture::new(&[fixed(limit, 3_600)], instances);
        assert_eq!(urgency(&fixture), Pause, "nothing to report");
        fixture.counter.refresh(seconds(1), fixture.now);
        assert_eq!(urgency(&fixture), Interval, "a read");
        fixture.count(hits);
        assert_eq!(urgency(&fixture), expected, "{hits} of {limit}, {instances} instances");
    }
}

/// After two pauses without a reply an instance does not know the others any more.
#[test]
fn a_flush_waits_for_its_pause_until_two_thirds_of_a_part_are_taken() {
    let mut fixture = Fixture::new(&[fixed(1_000, 3_600)], 2);
    fixture.take_elsewhere(400);
    fixture.read();
    // a pause is as long as an interval
    fixture.counter.plan.schedule.plan(millis(4_000), Period::MAX, &[fixed(100, 1)]);
    fixture.count(199);
    assert_eq!(urgency(&fixture), Urgency::Pause);
    fixture.count(1);
    assert_eq!(urgency(&fixture), Urgency::Now);
    let mut late = Fixture::new(&[fixed(1_000, 3_600)], 2);
    late.read();
    late.counter.plan.schedule.plan(millis(20_000), Period::MAX, &[fixed(100, 1)]);
    late.count(12);
    late.wait(millis(800));
    assert_eq!(urgency(&late), Urgency::Pause);
    late.wait(NANO);
    assert_eq!(urgency(&late), Urgency::Now);
    // those that are expected within a round trip count too
    let mut busy = Fixture::new(&[fixed(1_000, 3_600)], 2);
    busy.demand(millis(1), 600);
    busy.read();
    busy.counter.plan.schedule.plan(millis(4_000), Period::MAX, &[fixed(100, 1)]);
    busy.count(150);
    let within = |round_trip| busy.counter.urgency(millis(round_trip), millis(10), busy.now);
    assert_eq!((within(10), within(300)), (Urgency::Pause, Urgency::Now));
}

/// It joins the next batch, or is sent at once.
#[test]
fn a_flush_is_early_when_the_end_is_near() {
    for (left, after, expected) in [
        (150, 49, Urgency::Pause),
        (150, 50, Urgency::Now),
        (2_000, 99, Urgency::Pause),
        (2_000, 100, Urgency::Tick),
    ] {
        let mut fixture = Fixture::new(&[fixed(100_000, 3_600)], 2);
        fixture.read();
        fixture.counter.plan.schedule.plan(millis(left), Period::MAX, &[fixed(100, 1)]);
        fixture.count(1);
        fixture.wait(millis(after));
        assert_eq!(urgency(&fixture), expected, "{after} ms after the reply, {left} ms before the end");
    }
    let mut outrun = Fixture::new(&[fixed(100_000, 3_600)], 2);
    outrun.read();
    outrun.counter.plan.schedule.plan(millis(20_000), Period::MAX, &[fixed(100, 1)]);
    outrun.count(2_000);
    assert_eq!(urgency(&outrun), Urgency::Pause);
    outrun.count(1);
    assert_eq!(urgency(&outrun), Urgency::Tick, "a burst in a long pause");
}

/// A twentieth of the period of a bucket, a hundredth of that of a sliding window, from 1 ms to 1 s.
#[test]
fn hits_are_held_for_a_part_of_the_period() {
    for (tiers, held, alone) in [
        (vec![bucket(9, 10)], 500, 5_000),
        (vec![sliding(9, 10)], 100, 5_000),
        (vec![bucket(9, 10), sliding(9, 40)], 400, 5_000),
        (vec![bucket(9, 1), fixed(9, 60)], 50, 500),
        (vec![bucket(9, 90)], 1_000, 30_000),
        (vec![Tier { period: millis(1), ..sliding(9, 1) }], 1, 1),
    ] {
        assert_eq!((hold(&tiers), lone_hold(&tiers)), (millis(held), millis(alone)), "{tiers:?}");
    }
    let at = |ms| START.after(millis(ms));
    for (tier, until, now, expected) in [
        (bucket(9, 10), 300, 499, false),
        (bucket(9, 10), 300, 500, true),
        (bucket(9, 10), 700, 699, false),
        (bucket(9, 10), 700, 700, true),
        (sliding(9, 10), 300, 9_000, false),
        (fixed(9, 10), 300, 9_000, false),
    ] {
        assert_eq!(has_flowed_back(&[tier], START, at(until), at(now)), expected, "{until}, {now}");
    }
}

/// A replica whose clock is behind has become the master.
#[test]
fn replies_count_after_the_store_s_clock_has_stepped_back() {
    let mut fixture = Fixture::new(&[fixed(100, 86_400)], 2);
    fixture.wait(Period::from_secs(100));
    fixture.count(1);
    fixture.flush();
    fixture.now = Timestamp::from_nanos(fixture.now.as_nanos() - 30_000_000_000);
    fixture.take_elsewhere(10);
    fixture.count(1);
    fixture.flush();
    assert_eq!(fixture.counter.remaining(fixture.now), 88);
}
