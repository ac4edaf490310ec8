//! When a flush is due, and for how long leased hits may be used.

use super::*;
use crate::counter::{FlushUrgency, has_flowed_back, hold, schedule::FlushSchedule};

const NANO: Period = Period::from_nanos(1);

fn seconds(seconds: u64) -> Period {
    Period::from_secs(seconds)
}

/// A pause is a fiftieth of the time to the limit: at least the interval, at most ten of them, or 0.9 s.
#[test]
fn a_pause_is_a_part_of_the_time_to_the_limit() {
    for (interval, left, pause) in [
        (100, 0, 100),
        (100, 4_000, 100),
        (100, 10_000, 200),
        (100, 44_000, 880),
        (100, 900_000, 900),
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

fn urgency(fixture: &Fixture) -> FlushUrgency {
    fixture.counter.urgency(Period::default(), millis(10), fixture.now)
}

/// While an instance does not know the others, hits are sent at once if all may take a sixteenth of the limit, or the
/// others a 256th.
#[test]
fn a_first_flush_is_as_urgent_as_the_limit_is_near() {
    use FlushUrgency::{Interval, Now, Pause};
    for (limit, instances, hits, expected) in [
        (1_000, 1, 62, Interval),
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
    assert_eq!(urgency(&fixture), FlushUrgency::Pause);
    fixture.count(1);
    assert_eq!(urgency(&fixture), FlushUrgency::Now);
    let mut late = Fixture::new(&[fixed(1_000, 3_600)], 2);
    late.read();
    late.counter.plan.schedule.plan(millis(20_000), Period::MAX, &[fixed(100, 1)]);
    late.count(12);
    late.wait(millis(800));
    assert_eq!(urgency(&late), FlushUrgency::Pause);
    late.wait(NANO);
    assert_eq!(urgency(&late), FlushUrgency::Now);
    // those that are expected within a round trip count too
    let mut busy = Fixture::new(&[fixed(1_000, 3_600)], 2);
    busy.demand(millis(1), 600);
    busy.read();
    busy.counter.plan.schedule.plan(millis(4_000), Period::MAX, &[fixed(100, 1)]);
    busy.count(150);
    let within = |round_trip| busy.counter.urgency(millis(round_trip), millis(10), busy.now);
    assert_eq!((within(10), within(300)), (FlushUrgency::Pause, FlushUrgency::Now));
}

/// It joins the next batch, or is sent at once.
#[test]
fn a_flush_is_early_when_the_end_is_near() {
    for (left, after, expected) in [
        (150, 49, FlushUrgency::Pause),
        (150, 50, FlushUrgency::Tick),
        (2_000, 99, FlushUrgency::Pause),
        (2_000, 100, FlushUrgency::Tick),
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
    assert_eq!(urgency(&outrun), FlushUrgency::Pause);
    outrun.count(1);
    assert_eq!(urgency(&outrun), FlushUrgency::Tick, "a burst in a long pause");
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
        assert_eq!((hold(&tiers, false), hold(&tiers, true)), (millis(held), millis(alone)), "{tiers:?}");
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
        assert_eq!(has_flowed_back(&[tier], false, START, at(until), at(now)), expected, "{until}, {now}");
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
