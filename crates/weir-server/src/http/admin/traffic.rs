//! Rates: what the counters of the stats have gained in the last minutes.
//!
//! Only what rules, methods and the store count is read, every few seconds and when somebody asks: a decision pays
//! nothing for it. A rule has 240 bytes of history.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use weir_limit::{NANOS_PER_SECOND, Period, SharedStore, Timestamp};
use weir_observe::{
    Metric, RuleCounts, Stats,
    histogram::{Bucket, Distribution},
    metric::MetricKind,
};

use super::{
    instance::StoreFacts,
    time::{seconds, text},
};

/// Of rules: ten minutes.
const STEP: TrafficSeries = TrafficSeries::new(20, 30);

/// Of the whole instance: 15 minutes.
const FINE_STEP: TrafficSeries = TrafficSeries::new(10, 90);

/// Of calls of the store, and of methods: a minute.
const BRIEF: TrafficSeries = TrafficSeries::new(10, 6);

/// The time between two looks.
pub(super) const LOOK: u64 = 5;

/// The distributions of response times that are kept: a minute.
const KEPT_TIMES: usize = 12;

/// The method whose latency is shown.
const METHOD: &str = "ShouldRateLimit";

pub(super) type RuleName = Arc<[Box<str>]>;

#[derive(Debug, Default)]
pub(super) struct InstanceTraffic(Mutex<TrafficState>);

#[derive(Debug, Default)]
struct TrafficState {
    rules: HashMap<RuleName, RuleTraffic>,
    all: Option<TrafficSeries>,
    requests: Option<TrafficSeries>,
    store_calls: Option<TrafficSeries>,
    /// The number and the nanoseconds of round trips.
    round_trips: Option<TrafficSeries>,
    times: VecDeque<Distribution>,
    latest: Option<Distribution>,
    looked_at: Option<Period>,
    store: StoreFacts,
}

/// What a rule has seen.
#[derive(Clone, Debug)]
pub(super) struct RuleTraffic {
    pub(super) counts: RuleCounts,
    pub(super) last_matched: Option<Timestamp>,
    pub(super) series: TrafficSeries,
}

/// The growth of two counters in steps of equal length.
#[derive(Clone, Debug)]
pub(super) struct TrafficSeries {
    /// In seconds.
    step: u64,
    most: usize,
    /// The number of the current step.
    current: u64,
    /// The time of the first look.
    begun: Period,
    /// The counters at the begin of the current step, and now.
    base: [u64; 2],
    now: [u64; 2],
    /// The growth of the steps before, the oldest first.
    steps: VecDeque<[u32; 2]>,
}

/// What the instance did in the last minute.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    pub(super) requests_per_second: f64,
    pub(super) store_calls_per_second: f64,
    /// In seconds.
    pub(super) round_trip: Option<f64>,
    /// Of the quantiles 0.5 and 0.99, in seconds.
    pub(super) latency: Option<[f64; 2]>,
    pub(super) all: Option<TrafficSeries>,
}

/// The hits that a rule has admitted and rejected. Those past the limit of one in shadow mode are neither.
pub(super) const fn outcome(counts: &RuleCounts) -> [u64; 2] {
    [counts.within_limit, counts.over_limit.saturating_sub(counts.shadow_mode)]
}

// === impl InstanceTraffic ===

impl InstanceTraffic {
    /// Reads all counters at the `uptime` of the process.
    pub(super) fn look(&self, stats: &Stats, shared: Option<SharedStore>, uptime: Period, now: Timestamp) {
        let (counts, metrics) = (stats.counts_by_rule(), stats.metrics());
        let methods = stats.methods();
        let mut locked = self.0.lock();
        let traffic = &mut *locked;
        let mut sum = [0_u64; 2];
        let is_first = traffic.all.is_none();
        traffic.rules.retain(|name, _| counts.contains_key(name));
        for (name, counts) in counts {
            let total = outcome(&counts);
            sum = [sum[0].saturating_add(total[0]), sum[1].saturating_add(total[1])];
            let known = traffic.rules.entry(name).or_insert_with(|| RuleTraffic {
                // what a new rule has counted already is new, too
                counts: if is_first { counts } else { RuleCounts::default() },
                last_matched: None,
                series: STEP.begun_at(if is_first { total } else { [0; 2] }, uptime),
            });
            if counts.total_hits != known.counts.total_hits {
                known.last_matched = Some(now);
            }
            known.counts = counts;
            known.series.look(total, uptime);
        }
        let requests = methods.iter().map(|(_, method)| method.total_requests()).fold(0, u64::saturating_add);
        let calls = metrics
            .iter()
            .filter(|metric| metric.name == "weir.store.calls")
            .map(|metric| metric.value)
            .sum();
        let trips = round_trips(&metrics);
        traffic.store = StoreFacts::of(&metrics, shared);
        for (series, of, total) in [
            (&mut traffic.all, FINE_STEP, sum),
            (&mut traffic.requests, BRIEF, [requests, 0]),
            (&mut traffic.store_calls, BRIEF, [calls, 0]),
            (&mut traffic.round_trips, BRIEF, trips),
        ] {
            series.get_or_insert_with(|| of.begun_at(total, uptime)).look(total, uptime);
        }
        let times =
            methods.iter().find(|(name, _)| *name == METHOD).map(|(_, method)| method.response_time.get());
        if traffic.looked_at.is_none_or(|last| uptime.as_nanos() >= last.as_nanos() + LOOK * NANOS_PER_SECOND)
        {
            traffic.looked_at = Some(uptime);
            traffic.times.extend(times.clone());
            if traffic.times.len() > KEPT_TIMES {
                traffic.times.pop_front();
            }
        }
        traffic.latest = times;
    }

    pub(super) fn recent(&self, uptime: Period) -> Recent {
        let state = self.0.lock();
        let first =
            |series: &Option<TrafficSeries>| series.as_ref().map_or(0.0, |series| series.rates(1, uptime)[0]);
        let trips = state.round_trips.as_ref().map_or([0; 2], |series| series.growth(1));
        Recent {
            requests_per_second: first(&state.requests),
            store_calls_per_second: first(&state.store_calls),
            round_trip: (trips[0] > 0).then(|| as_float(trips[1]) / as_float(trips[0]) / 1e9),
            latency: latency(state.times.front(), state.latest.as_ref()),
            all: state.all.clone(),
        }
    }

    /// As of the last look.
    pub(super) fn store(&self) -> StoreFacts {
        self.0.lock().store
    }

    pub(super) fn rule(&self, name: &[Box<str>]) -> Option<RuleTraffic> {
        self.0.lock().rules.get(name).cloned()
    }

    /// Returns the names and the traffic of all rules, also of those not in force.
    pub(super) fn rules(&self) -> Vec<(RuleName, RuleTraffic)> {
        self.0.lock().rules.iter().map(|(name, rule)| (Arc::clone(name), rule.clone())).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate to look at")]
pub(super) const fn as_float(number: u64) -> f64 {
    number as f64
}

/// Rounded to a thousandth.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

fn round_trips(metrics: &[Metric]) -> [u64; 2] {
    let times = metrics.iter().filter(|metric| metric.name.ends_with(".round_trip"));
    times.fold([0; 2], |sum: [u64; 2], metric| match &metric.kind {
        MetricKind::Timing(times) => {
            let nanos = u64::try_from(times.sum().as_nanos()).unwrap_or(u64::MAX);
            [sum[0].saturating_add(times.count()), sum[1].saturating_add(nanos)]
        }
        MetricKind::Counter | MetricKind::Gauge => sum,
    })
}

fn latency(earlier: Option<&Distribution>, latest: Option<&Distribution>) -> Option<[f64; 2]> {
    let mut recent = latest?.clone();
    for (bucket, earlier) in
        recent.buckets.iter_mut().zip(earlier.iter().flat_map(|earlier| &earlier.buckets))
    {
        *bucket = Bucket::minus(*bucket, *earlier);
    }
    let quantile = |quantile| recent.quantile(quantile).map(|nanos| nanos.round() / 1e9);
    Some([quantile(0.5)?, quantile(0.99)?])
}

// === impl TrafficSeries ===

impl TrafficSeries {
    const fn new(step: u64, most: usize) -> Self {
        let begun = Period::from_nanos(0);
        Self { step, most, current: 0, begun, base: [0; 2], now: [0; 2], steps: VecDeque::new() }
    }

    fn begun_at(&self, total: [u64; 2], uptime: Period) -> Self {
        let current = uptime.as_nanos() / NANOS_PER_SECOND / self.step;
        Self { current, begun: uptime, base: total, now: total, ..self.clone() }
    }

    fn look(&mut self, total: [u64; 2], uptime: Period) {
        let current = uptime.as_nanos() / NANOS_PER_SECOND / self.step;
        if current > self.current {
            let mut ended = self.growth_of_current();
            for _ in 0..(current - self.current).min(self.most as u64) {
                self.steps.push_back(std::mem::take(&mut ended));
            }
            while self.steps.len() > self.most {
                self.steps.pop_front();
            }
            (self.current, self.base) = (current, self.now);
        }
        self.now = total;
    }

    fn growth_of_current(&self) -> [u32; 2] {
        [0, 1].map(|i| u32::try_from(self.now[i].saturating_sub(self.base[i])).unwrap_or(u32::MAX))
    }

    /// The growth in the last `minutes`, and in the current step.
    fn growth(&self, minutes: u64) -> [u64; 2] {
        let steps = self.steps.iter().rev().take(self.steps_of(minutes));
        let current = self.growth_of_current();
        steps.chain([&current]).fold([0; 2], |sum: [u64; 2], step| {
            [sum[0].saturating_add(step[0].into()), sum[1].saturating_add(step[1].into())]
        })
    }

    fn steps_of(&self, minutes: u64) -> usize {
        usize::try_from(minutes * 60 / self.step).unwrap_or(usize::MAX)
    }

    /// The growth a second in the last `minutes`, or since the begin.
    fn rates(&self, minutes: u64, uptime: Period) -> [f64; 2] {
        let nanos = |seconds: u64| seconds * NANOS_PER_SECOND;
        let of_current = uptime.as_nanos().saturating_sub(nanos(self.current * self.step));
        let since_begin = uptime.as_nanos().saturating_sub(self.begun.as_nanos());
        let time = (nanos(minutes * 60) + of_current).min(since_begin).max(NANOS_PER_SECOND);
        self.growth(minutes).map(|hits| rounded(as_float(hits) / (as_float(time) / 1e9)))
    }

    pub(super) fn rates_json(&self, uptime: Period) -> Value {
        let (minute, ten) = (self.rates(1, uptime), self.rates(10, uptime));
        json!({
            "admitted_1m": minute[0],
            "rejected_1m": minute[1],
            "admitted_10m": ten[0],
            "rejected_10m": ten[1],
        })
    }

    /// The hits of the last minute.
    pub(super) fn last_minute(&self) -> u64 {
        let [admitted, rejected] = self.growth(1);
        admitted.saturating_add(rejected)
    }

    pub(super) fn history(&self, uptime: Period, now: Timestamp) -> Value {
        let steps: Vec<[u64; 2]> = self.steps.iter().map(|step| step.map(u64::from)).collect();
        let since = uptime.as_nanos().saturating_sub(self.current * self.step * NANOS_PER_SECOND);
        history(&steps, self.step, now.before(Period::from_nanos(since)))
    }
}

/// Hits in steps of so many seconds, as hits a second.
pub(super) fn history(steps: &[[u64; 2]], step: u64, until: Timestamp) -> Value {
    let rates = |i: usize| -> Vec<f64> {
        steps.iter().map(|hits| rounded(as_float(hits[i]) / as_float(step))).collect()
    };
    json!({
        "step": seconds(Period::from_secs(step)),
        "until": text(until),
        "admitted": rates(0),
        "rejected": rates(1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Period {
        Period::from_secs(seconds)
    }

    #[test]
    fn a_rate_is_that_of_the_last_minutes() {
        let mut series = STEP.begun_at([5, 0], at(100));
        series.look([15, 2], at(102));
        assert_eq!(json!(series.rates(1, at(102))), json!([5.0, 1.0]), "of the two seconds since the begin");
        // 10 hits a second for ten minutes
        for second in 103..=720 {
            series.look([15 + 10 * (second - 102), 2], at(second));
        }
        let ([minute, _], [ten, rejected]) = (series.rates(1, at(720)), series.rates(10, at(720)));
        assert!(
            (9.5..10.5).contains(&minute) && (9.5..10.5).contains(&ten) && rejected < 0.1,
            "{minute} {ten}"
        );
        assert!(series.steps.len() == 30);
        // then nothing
        series.look([15 + 10 * 618, 2], at(800));
        assert_eq!(json!(series.rates(1, at(820))), json!([0.0, 0.0]));
        assert!(series.rates(10, at(820))[0] > 5.0);
        series.look([15 + 10 * 618, 2], at(80_000));
        assert_eq!(json!(series.rates(10, at(80_000))), json!([0.0, 0.0]));
        assert_eq!(series.steps.len(), 30);
    }

    #[test]
    fn what_only_a_shadow_would_reject_is_neither_admitted_nor_rejected() {
        let counts = RuleCounts { within_limit: 7, over_limit: 5, shadow_mode: 5, ..RuleCounts::default() };
        assert_eq!(outcome(&counts), [7, 0]);
        assert_eq!(outcome(&RuleCounts { shadow_mode: 0, ..counts }), [7, 5]);
    }

    #[test]
    fn a_history_has_whole_steps() {
        let mut series = FINE_STEP.begun_at([0; 2], at(3));
        for second in 4..35 {
            series.look([second * 2, second], at(second));
        }
        let history = series.history(at(34), Timestamp::from_secs(1_000_034));
        assert_eq!(history["until"], "1970-01-12T13:47:10.000Z");
        assert_eq!(history["admitted"].as_array().map(Vec::len), Some(3));
        assert_eq!(history["admitted"][1], 2.0);
    }
}
