//! Reservations that the estimate makes, and the release of any.

use super::*;
use weir_limit::{ReservationRequest, ReservedSpan};

fn request(least: u64, want: u64, hold: u64) -> ReservationRequest {
    ReservationRequest { least: Hits(least), want: Hits(want), hold: millis(hold) }
}

fn span_of(from: Timestamp, hold: Period) -> ReservedSpan {
    ReservedSpan { from, until: from.after(hold), is_reported: true }
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
        assert_eq!((made.counted.from, made.counted.until), (at, at.after(millis(hold))), "{tiers:?}");
    }
}

/// They would take back what others have counted since.
#[test]
fn reserved_hits_that_count_no_more_or_perhaps_never_did_are_not_given_back() {
    for tiers in [vec![fixed(100, 60)], vec![sliding(100, 60)], vec![bucket(100, 60), fixed(100, 60)]] {
        for is_reported in [true, false] {
            let mut fixture = Fixture::new(&tiers, 1);
            let span = ReservedSpan { is_reported, ..span_of(fixture.now, millis(1_000)) };
            fixture.wait(Period::from_secs(if is_reported { 61 } else { 1 }));
            fixture.count(10);
            fixture.counter.release(span, Hits(4), fixture.now);
            fixture.flush();
            let is_bucket = is_reported && tiers.len() > 1;
            assert!(is_bucket || fixture.left_in_store() == 90, "{tiers:?}, {is_reported}");
        }
    }
}
