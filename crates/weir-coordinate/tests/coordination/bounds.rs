//! The bound and the cost of each coordination mode without faults.

use std::time::Duration;

use weir_coordinate::{CoordinationMetrics, simulated::Network};
use weir_limit::{Algorithm, Bucket, Coordination, Period, Refill, Tier};

use crate::fleet::{Fleet, Outcome, by_window, every_window, most_in_any};

/// Weights that send most of the load to one instance, and some to each.
const SKEWED: [u32; 5] = [60, 20, 10, 6, 4];

/// A fleet, and the outcomes of the requests sent to it.
struct Run {
    fleet: Fleet,
    outcomes: Vec<Outcome>,
}

impl Run {
    /// Sends `load` times the limit to five instances, for `windows` periods.
    async fn new(mode: Coordination, tier: &Tier, load: u64, windows: u64) -> Self {
        Self::spread(mode, tier, load, windows, &SKEWED).await
    }

    /// Sends `load` times the limit to five instances, spread by `weights`, for `windows` periods.
    async fn spread(mode: Coordination, tier: &Tier, load: u64, windows: u64, weights: &[u32]) -> Self {
        let fleet = Fleet::new(5, mode, std::slice::from_ref(tier), Network::default()).await;
        let period = Duration::from(tier.period);
        let rate =
            u64::from(tier.requests) * load * 1_000 / u64::try_from(period.as_millis()).expect("it is short");
        let time = period * u32::try_from(windows).expect("they are few");
        let outcomes = fleet.offer(rate, time, weights).await;
        Self { fleet, outcomes }
    }

    fn sum(&self, metric: impl Fn(&CoordinationMetrics) -> u64) -> u64 {
        self.fleet.instances.iter().map(|instance| metric(instance.store.coordination_metrics())).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "a share to compare")]
    fn share(&self, part: u64) -> f64 {
        part as f64 / self.outcomes.len() as f64
    }

    fn calls_per_decision(&self) -> f64 {
        self.share(self.sum(|metrics| metrics.store.calls.get()))
    }

    fn admitted(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.admitted).count()
    }

    /// Asserts that one call serves many decisions and that few decisions wait.
    fn assert_cheap(&self, load: u64, weights: &[u32]) {
        let calls = self.calls_per_decision();
        // instances with little load request small leases
        let most = if weights == SKEWED { 0.13 } else { 0.115 };
        assert!(calls < most, "{calls} calls per decision, {load} times, {weights:?}");
        let waited = self.share(self.sum(|metrics| metrics.decisions.waited.get()));
        assert!(waited < 0.04, "{waited} of the decisions waited, {load} times");
        assert_eq!(self.sum(|metrics| metrics.decisions.fallback.get()), 0);
    }
}

fn fixed(requests: u32, period: Period) -> Tier {
    Tier::fixed_window(requests, period)
}

const CASES: [(u32, u64, u64); 4] = [(1_000, 1, 2), (1_000, 1, 10), (500, 3, 2), (500, 3, 10)];

#[tokio::test(start_paused = true)]
async fn a_lease_never_exceeds_the_limit_and_uses_all_of_it_with_few_calls() {
    for (limit, seconds, load) in CASES {
        let tier = fixed(limit, Period::from_secs(seconds));
        let run = Run::new(Coordination::Lease, &tier, load, 4).await;
        for admitted in by_window(&run.outcomes, tier.period) {
            let limit = u64::from(limit);
            assert!(admitted <= limit && admitted * 100 >= limit * 99, "{admitted} of {limit}, {load} times");
        }
        assert!(
            run.calls_per_decision() < 0.12,
            "{} calls per decision at {limit}, {load}",
            run.calls_per_decision()
        );
        let waited = run.share(run.sum(|metrics| metrics.decisions.waited.get()));
        assert!(waited < 0.04, "{waited} of the decisions waited");
        assert_eq!(run.sum(|metrics| metrics.decisions.fallback.get()), 0);
    }
}

/// Weights of an even load, and of a load that is mostly on one instance.
const SPREADS: [[u32; 5]; 2] = [[1, 1, 1, 1, 1], SKEWED];

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_bucket_costs_few_calls_and_few_waits_in_steady_overload() {
    let bucket = Bucket { burst: 500, refill: Refill::Continuous, strict: false };
    let tier = Tier { algorithm: Algorithm::TokenBucket(bucket), ..fixed(500, Period::from_secs(3)) };
    for (load, spread) in [2, 4, 10].into_iter().flat_map(|load| SPREADS.map(|spread| (load, spread))) {
        let run = Run::spread(Coordination::Lease, &tier, load, 8, &spread).await;
        run.assert_cheap(load, &spread);
        for millis in [100, 500, 3_000, 9_000] {
            let most = most_in_any(&run.outcomes, Period::from_millis(millis));
            // leased hits may be used up to a twentieth of the period later
            let bound = 500 + 500 * (millis + 150) / 3_000;
            assert!(most <= bound, "{most} in {millis} ms, but at most {bound} are allowed, {load} times");
        }
        let (admitted, bound) = (run.admitted(), 500 + 500 * 8);
        assert!(admitted * 100 >= bound * 98, "{admitted} of {bound}, {load} times");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_sliding_window_uses_nearly_all_of_it_in_steady_overload() {
    let tier = Tier { algorithm: Algorithm::SlidingWindow, ..fixed(500, Period::from_secs(3)) };
    for (load, spread) in [2, 4, 10].into_iter().flat_map(|load| SPREADS.map(|spread| (load, spread))) {
        let run = Run::spread(Coordination::Lease, &tier, load, 6, &spread).await;
        // a short hold costs calls, but far fewer than a call a decision
        let (calls, waited) =
            (run.calls_per_decision(), run.share(run.sum(|metrics| metrics.decisions.waited.get())));
        assert!(calls < 0.4 && waited < 0.25, "{calls} calls per decision, {waited} waited, {load} times");
        let most = most_in_any(&run.outcomes, tier.period);
        assert!(most <= 500, "{most} in some interval, {load} times");
        assert!(run.admitted() * 100 >= 500 * 6 * 99, "{} of {}, {load} times", run.admitted(), 500 * 6);
    }
}

#[tokio::test(start_paused = true)]
async fn strict_never_exceeds_the_limit_and_uses_all_of_it() {
    for (limit, seconds, load) in CASES {
        let tier = fixed(limit, Period::from_secs(seconds));
        let run = Run::new(Coordination::Strict, &tier, load, 3).await;
        for admitted in by_window(&run.outcomes, tier.period) {
            assert_eq!(admitted, u64::from(limit));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn interval_overshoots_by_little_and_never_waits() {
    for (limit, seconds, load) in CASES {
        let tier = fixed(limit, Period::from_secs(seconds));
        let run = Run::new(Coordination::Interval, &tier, load, 4).await;
        for admitted in by_window(&run.outcomes, tier.period) {
            let excess = admitted.saturating_sub(limit.into());
            assert!(excess * 100 <= u64::from(limit) * 5, "{excess} over {limit}, {load} times");
            assert!(admitted >= u64::from(limit), "it admits the whole limit: {admitted} of {limit}");
        }
        assert!(run.outcomes.iter().all(|outcome| outcome.waited.is_zero()), "no decision waits");
        // each excess hit is reported once, by the instance that admitted it, except for hits that are counted in the
        // window after their own
        tokio::time::sleep(Duration::from_secs(1)).await;
        let windows = every_window(&run.outcomes, tier.period).into_iter();
        let excess: u64 = windows.map(|admitted| admitted.saturating_sub(limit.into())).sum();
        let reported = run.sum(|metrics| metrics.hits.overshoot.get());
        assert!(
            reported.abs_diff(excess) <= 2 + excess / 10,
            "{reported} reported, {excess} above the limit"
        );
        assert!(run.calls_per_decision() < 0.12, "{} calls per decision", run.calls_per_decision());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_counted_in_the_metrics() {
    let lossy = Network { lost_replies: 1.0, ..Network::default() };
    for mode in [Coordination::Strict, Coordination::Lease] {
        let fleet = Fleet::new(1, mode, &[fixed(10, Period::from_secs(1_000))], Network::default()).await;
        let store = &fleet.instances[0].store;
        store.remote().set_network(lossy);
        fleet.instances[0].hit().await;
        // the hit that was admitted by the fallback is reported, and that call succeeds
        store.remote().set_network(Network::default());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let metrics = store.coordination_metrics();
        // an instance that is alone leases an eighth of the limit ahead
        let requested = if mode == Coordination::Lease { 2 } else { 1 };
        assert_eq!(
            (metrics.hits.delivery_unknown.get(), metrics.decisions.fallback.get()),
            (requested, 1),
            "{mode:?}"
        );
        assert!(metrics.store.failures.get() >= 1, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_local_mode_every_instance_has_the_whole_limit() {
    let tier = fixed(100, Period::from_secs(1));
    let run = Run::new(Coordination::Local, &tier, 100, 3).await;
    for admitted in by_window(&run.outcomes, tier.period) {
        assert_eq!(admitted, 500);
    }
    assert_eq!(run.sum(|metrics| metrics.store.calls.get()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_shared_sliding_window_holds_in_every_interval() {
    let tier = Tier { algorithm: Algorithm::SlidingWindow, ..fixed(400, Period::from_secs(2)) };
    for mode in [Coordination::Lease, Coordination::Strict] {
        let run = Run::new(mode, &tier, 4, 6).await;
        let most = most_in_any(&run.outcomes, tier.period);
        assert!(most <= 400, "{mode:?}: {most} in some interval");
        let admitted = run.outcomes.iter().filter(|outcome| outcome.admitted).count();
        assert!(admitted >= 6 * 400 * 85 / 100, "{mode:?}: {admitted} of {}", 6 * 400);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_bucket_holds_in_every_interval() {
    let bucket = Bucket { burst: 100, refill: Refill::Continuous, strict: false };
    let tier = Tier { algorithm: Algorithm::TokenBucket(bucket), ..fixed(200, Period::from_secs(1)) };
    for mode in [Coordination::Lease, Coordination::Strict, Coordination::Interval] {
        let run = Run::new(mode, &tier, 5, 6).await;
        for millis in [100, 500, 1_000, 3_000] {
            let most = most_in_any(&run.outcomes, Period::from_millis(millis));
            // a lease of a bucket may be used up to a twentieth of the period later; in `interval` mode hits are
            // reported later
            let hold = match mode {
                Coordination::Lease => 50,
                Coordination::Interval => 100,
                _ => 0,
            };
            let bound = 100 + 200 * (millis + hold) / 1_000;
            assert!(most <= bound, "{mode:?}: {most} in {millis} ms, but at most {bound} are allowed");
        }
        let admitted = run.outcomes.iter().filter(|outcome| outcome.admitted).count();
        assert!(admitted >= 6 * 200 * 95 / 100, "{mode:?}: {admitted}");
    }
}

/// Each instance alone stays below the rate of the bucket, which is full again whenever one of them reports. All
/// together exceed it.
#[tokio::test(start_paused = true)]
async fn a_bucket_adds_up_what_instances_take_below_its_rate() {
    let bucket = Bucket { burst: 1_000, refill: Refill::Continuous, strict: false };
    let tier = Tier { algorithm: Algorithm::TokenBucket(bucket), ..fixed(1_000, Period::from_secs(1)) };
    for weights in [[1; 5], [3, 3, 2, 1, 1]] {
        let run = Run::spread(Coordination::Interval, &tier, 2, 5, &weights).await;
        for seconds in [2, 3, 4] {
            let most = most_in_any(&run.outcomes, Period::from_secs(seconds));
            let bound = 1_100 + 1_000 * seconds;
            assert!(most <= bound, "{most} in {seconds} s, but at most {bound} are allowed");
        }
        assert!(run.admitted() >= 5_500, "{}", run.admitted());
    }
}
