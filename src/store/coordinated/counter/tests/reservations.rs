//! Reservations that the estimate makes, and the release of any.

use super::*;
use crate::{
    limit::{ReservationRequest, ReservedSpan},
    store::remote::UnusedHits,
};

fn request(least: u64, want: u64, hold: u64) -> ReservationRequest {
    ReservationRequest { least: Hits(least), want: Hits(want), hold: millis(hold) }
}

fn span_of(from: Timestamp, hold: Period) -> ReservedSpan {
    ReservedSpan { from, until: from.after(hold), is_reported: true }
}

#[test]
fn without_the_store_an_instance_reserves_its_part_of_what_is_left() {
    let mut fixture = Fixture::new(&[fixed(100, 60), fixed(1_000, 3_600)], 4);
    fixture.take_elsewhere(20);
    fixture.read();
    let fit = |fixture: &Fixture, least, want| {
        fixture.counter.fit_fallback(request(least, want, 100), fixture.now).0
    };
    assert_eq!([fit(&fixture, 1, 50), fit(&fixture, 1, 7), fit(&fixture, 21, 50)], [20, 7, 0]);
    fixture.counter.among(4).count_fallback(Direction::Take, Hits(6), true, fixture.now);
    // those that were admitted here count for all four
    assert_eq!(fit(&fixture, 1, 50), 14);
    assert_eq!((fixture.counter.owed_hits().unreported, fixture.counter.remaining(fixture.now)), (6, 74));
    // what is given back is available at once, and to the others when the store is back
    let span = span_of(fixture.now, millis(100));
    fixture.counter.release(span, Hits(2), true, fixture.now);
    assert_eq!((fit(&fixture, 1, 50), fixture.counter.remaining(fixture.now)), (16, 76));
    fixture.flush();
    assert_eq!(fixture.left_in_store(), 76);
}

#[test]
fn without_the_store_an_instance_that_is_alone_decides_by_its_estimate() {
    let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
    fixture.counter.among(2).count_fallback(Direction::Take, Hits(6), true, fixture.now);
    let mut fit =
        |instances| fixture.counter.among(instances).fit_fallback(request(1, 100, 100), fixture.now).0;
    // the other instance may have taken 6 as well, or has left
    assert_eq!([2, 1].map(&mut fit), [44, 94]);
    let left_after = |fixture: &mut Fixture, hits| {
        fixture.counter.among(1).count_fallback(Direction::Take, Hits(hits), true, fixture.now).remaining
    };
    assert_eq!(left_after(&mut fixture, 4), 90);
    fixture.count(10);
    assert_eq!(left_after(&mut fixture, 1), 79);
    assert_eq!(fixture.counter.owed_hits().unreported, 21);
}

#[test]
fn a_reservation_by_the_estimate_takes_what_is_left_but_not_less_than_the_least() {
    for (least, want, received) in [(1, 5, 3), (3, 5, 3), (4, 5, 0), (1, 2, 2)] {
        let mut fixture = Fixture::new(&[fixed(10, 60)], 2);
        fixture.count(7);
        fixture.flush();
        let hits = fixture.counter.among(2).reserve(request(least, want, 100), fixture.now);
        assert_eq!(hits, Hits(received), "{least} to {want}");
        assert_eq!(fixture.counter.owed_hits().unreported, received);
        assert_eq!(fixture.counter.remaining(fixture.now), 3 - received);
        let made = fixture.counter.local_reservation(hits, request(least, want, 100), fixture.now, START);
        assert_eq!((made.hits, made.decision.over), (hits, received == 0));
        let retry = if received == 0 { Period::from_secs(60) } else { made.decision.reset };
        assert_eq!(made.decision.reset, retry);
    }
}

/// It ends with its hold, or with the first fixed window, on the caller's clock.
#[test]
fn a_reservation_lasts_until_a_window_ends() {
    for (tiers, late, hold, lasts) in [
        (vec![fixed(100, 60)], 0, 20_000, 20_000),
        (vec![fixed(100, 60)], 50_000, 20_000, 10_000),
        (vec![fixed(100, 3_600), fixed(100, 60)], 50_000, 20_000, 10_000),
        (vec![sliding(100, 60)], 50_000, 20_000, 20_000),
        (vec![bucket(100, 10), fixed(100, 60)], 59_000, 20_000, 1_000),
    ] {
        let mut fixture = Fixture::new(&tiers, 2);
        fixture.wait(millis(late));
        let (at, own) = (fixture.now, fixture.now.after(Period::from_secs(3)));
        let made = fixture.counter.local_reservation(Hits(1), request(1, 1, hold), at, own);
        assert_eq!(made.until, own.after(millis(lasts)), "{tiers:?} after {late} ms");
        assert_eq!((made.counted.from, made.counted.until), (at, at.after(millis(lasts))), "{tiers:?}");
    }
}

#[test]
fn released_hits_are_available_here_at_once_and_then_to_others() {
    for tier in [fixed(100, 60), sliding(100, 60), bucket(100, 60)] {
        for can_grant in [true, false] {
            let mut fixture = Fixture::new(std::slice::from_ref(&tier), 2);
            fixture.count(10);
            fixture.flush();
            let span = span_of(fixture.now, Period::default());
            fixture.counter.release(span, Hits(4), can_grant, fixture.now);
            assert_eq!(fixture.counter.remaining(fixture.now), 94, "{tier}");
            let commands = fixture.take();
            let report = commands[0].0.exchange.reports.last().expect("a report");
            let unused = UnusedHits { hits: 4, until: span.until };
            assert_eq!(report.unused, can_grant.then_some(unused), "{tier}");
            assert_eq!(report.change.hits, if can_grant { 0 } else { -4 }, "{tier}");
            fixture.deliver(commands);
            assert_eq!(fixture.left_in_store(), 94, "{tier}");
        }
    }
}

/// They would take back what others have counted since.
#[test]
fn reserved_hits_that_count_no_more_or_perhaps_never_did_are_not_given_back() {
    for tiers in [vec![fixed(100, 60)], vec![sliding(100, 60)], vec![bucket(100, 60), fixed(100, 60)]] {
        for can_grant in [true, false] {
            for is_reported in [true, false] {
                let mut fixture = Fixture::new(&tiers, 1);
                let span = ReservedSpan { is_reported, ..span_of(fixture.now, millis(1_000)) };
                fixture.wait(Period::from_secs(if is_reported { 61 } else { 1 }));
                fixture.count(10);
                fixture.counter.release(span, Hits(4), can_grant, fixture.now);
                fixture.flush();
                let is_bucket = is_reported && tiers.len() > 1;
                assert!(is_bucket || fixture.left_in_store() == 90, "{tiers:?}, {can_grant}, {is_reported}");
            }
        }
    }
}

#[test]
fn hits_of_a_window_that_has_ended_are_not_given_back_to_the_next() {
    for can_grant in [true, false] {
        let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
        let span = span_of(fixture.now, Period::from_secs(60));
        fixture.count(10);
        fixture.flush();
        fixture.wait(Period::from_secs(60));
        fixture.count(10);
        fixture.counter.release(span, Hits(4), can_grant, fixture.now);
        assert_eq!(fixture.counter.remaining(fixture.now), 90);
        fixture.flush();
        assert_eq!(fixture.left_in_store(), 90);
    }
}

#[test]
fn without_the_store_hits_of_a_window_that_has_ended_are_not_given_back_to_the_next() {
    for is_reported in [true, false] {
        for waits in [1, 60] {
            let mut fixture = Fixture::new(&[fixed(100, 60)], 2);
            fixture.counter.among(2).count_fallback(Direction::Take, Hits(20), is_reported, fixture.now);
            let reserved = ReservedSpan { is_reported, ..span_of(fixture.now, millis(1_000)) };
            fixture.wait(Period::from_secs(waits));
            fixture.counter.among(2).count_fallback(Direction::Take, Hits(20), is_reported, fixture.now);
            fixture.counter.release(reserved, Hits(10), true, fixture.now);
            // each counts for both instances
            let left = if waits == 1 { 20 } else { 30 };
            let fit = fixture.counter.among(2).fit_fallback(request(1, 100, 100), fixture.now);
            assert_eq!(fit, Hits(left), "{is_reported}, after {waits} s");
        }
    }
}
