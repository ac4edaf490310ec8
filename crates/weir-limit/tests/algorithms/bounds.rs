//! Tests that no more requests are admitted than the algorithm's bound, and under overload not many fewer.

use proptest::{collection::vec, prelude::*, sample::select};
use weir_limit::{Algorithm, Bucket, Period, Refill, Tier, Timestamp};

use crate::support::{
    Log, PERIODS, Rule, START, Try, algorithm, later, run, tier, tries, tries_with_steps_back,
};

/// The admitted hits while the clock may step back.
#[derive(Default)]
struct Admitted {
    /// At the clock's latest instants, for fixed windows: one that has counted hits stays open until the clock reaches
    /// its end.
    by_window: Log,
    /// At the time for which the clock has run forward. A rejection may move a strict bucket's instant, so the clock's
    /// own time would be too short after a step back.
    by_time: Log,
}

impl Admitted {
    fn push(&mut self, now: Timestamp, forward: Timestamp, hits: u64) {
        let open = self.by_window.last().map_or(now, |(at, _)| now.max(*at));
        self.by_window.push((open, hits));
        self.by_time.push((forward, hits));
    }

    fn log(&self, tier: &Tier) -> &Log {
        if tier.algorithm == Algorithm::FixedWindow { &self.by_window } else { &self.by_time }
    }
}

/// Checks the documented bound in every interval that begins and ends with an admitted request.
fn check_bound(tier: &Tier, admitted: &Log) -> Result<(), TestCaseError> {
    let period = u128::from(tier.period.as_nanos());
    for (first, (begin, _)) in admitted.iter().enumerate() {
        let mut sum = 0_u128;
        for (end, hits) in &admitted[first..] {
            sum += u128::from(*hits);
            let elapsed = u128::from(end.since(*begin).as_nanos());
            let (requests, capacity) = (u128::from(tier.requests), u128::from(tier.capacity()));
            match tier.algorithm {
                Algorithm::FixedWindow => {
                    if begin.window_end(tier.period) == end.window_end(tier.period) {
                        prop_assert!(sum <= requests, "{sum} in one window");
                    }
                }
                Algorithm::SlidingWindow => {
                    if elapsed < period {
                        prop_assert!(sum <= requests, "{sum} in {elapsed} ns");
                    }
                }
                Algorithm::TokenBucket(Bucket {
                    refill: Refill::Continuous | Refill::AnyPace | Refill::Part(_),
                    ..
                }) => {
                    prop_assert!(
                        sum * period <= capacity * period + requests * elapsed,
                        "{sum} in {elapsed} ns"
                    );
                }
                Algorithm::TokenBucket(Bucket { refill: Refill::Step, .. }) => {
                    prop_assert!(
                        sum <= capacity + requests * (elapsed / period + 1),
                        "{sum} in {elapsed} ns"
                    );
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_interval_admits_more_than_the_bound(tier in tier(), tries in tries(150)) {
        let admitted = run(&mut Rule::new(vec![tier.clone()], START), &tries);
        check_bound(&tier, &admitted)?;
    }

    #[test]
    fn a_request_takes_from_all_tiers_or_from_none(
        tiers in vec(tier(), 2..4),
        tries in tries_with_steps_back(80),
    ) {
        let mut rule = Rule::new(tiers.clone(), START);
        // a separate rule for each tier, which counts only requests that all tiers admit
        let mut separate: Vec<Rule> = tiers.iter().map(|tier| Rule::new(vec![tier.clone()], START)).collect();
        let (mut now, mut forward, mut admitted) = (START, START, Admitted::default());
        for Try { later: share, hits } in tries {
            let before = now;
            now = later(now, &tiers[0], share);
            forward = forward.after(now.since(before));
            let all_admit = separate.iter().all(|rule| rule.would_pass(hits, now));
            let decision = rule.take(hits, now);
            prop_assert_eq!(!decision.over, all_admit);
            for rule in &mut separate {
                // a tier that would admit does not change when another one rejects
                if all_admit || !rule.would_pass(hits, now) {
                    rule.take(hits, now);
                }
            }
            if all_admit {
                admitted.push(now, forward, hits);
            }
        }
        for tier in &tiers {
            check_bound(tier, admitted.log(tier))?;
        }
    }

    /// In the time for which the clock runs forward, no more is admitted than by a clock that never steps back.
    #[test]
    fn a_clock_that_steps_back_extends_no_bound(tier in tier(), tries in tries_with_steps_back(150)) {
        let mut rule = Rule::new(vec![tier.clone()], START);
        let (mut now, mut forward, mut admitted) = (START, START, Admitted::default());
        for Try { later: share, hits } in tries {
            let before = now;
            now = later(now, &tier, share);
            forward = forward.after(now.since(before));
            if !rule.take(hits, now).over {
                admitted.push(now, forward, hits);
            }
        }
        check_bound(&tier, admitted.log(&tier))?;
    }

    #[test]
    fn steady_overload_uses_the_limit(
        requests in 1..50_u32,
        period in select(&PERIODS[..6]),
        algorithm in algorithm(),
        overload in 2..10_u64,
        offset in 0.0..1.0_f64,
    ) {
        let mut tier = Tier::new(requests, Period::from_nanos(period), algorithm);
        if let Algorithm::TokenBucket(bucket) = &mut tier.algorithm {
            // excludes the cases that admit less by definition: steps that do not fit into the bucket, and callers that
            // keep trying a strict bucket
            bucket.burst = bucket.burst.max(requests);
            bucket.strict = false;
        }
        let periods = 30;
        let start = later(START, &tier, offset);
        let mut rule = Rule::new(vec![tier.clone()], start);
        let every = period / (u64::from(requests) * overload) + 1;
        let mut admitted = 0;
        for i in 0.. {
            let now = start.after(Period::from_nanos(every * i));
            if now.since(start).as_nanos() >= periods * period {
                break;
            }
            admitted += u64::from(!rule.take(1, now).over);
        }
        let all = periods * u64::from(requests);
        let share = if tier.algorithm == Algorithm::SlidingWindow { 90 } else { 99 };
        // the last window or step may be incomplete
        let due = (all - u64::from(requests)) * share / 100;
        prop_assert!(admitted >= due, "{admitted} of {all}");
    }
}
