//! Hits that requests reserve for their costs, on a clock of the test: how well budgets are used and kept, by callers as
//! gateways of language models have them, and the rules of single reservations.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use weir_config::RuleDefaults;
use weir_export::snapshot::{StatValue, snapshot};
use weir_limit::{Code, Descriptor, Entry, KeyHasher, PlaceName, Request, RequestName, RuleSet, Timestamp};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_store::{MemoryStore, TakeOptions};

/// The start of a window of every length that the tests use.
const EPOCH: u64 = 1_699_999_200_000;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos((EPOCH + millis) * 1_000_000)
}

/// A limiter in memory, and its stats.
struct Service {
    limiter: Limiter<MemoryStore>,
    stats: Arc<Stats>,
    hasher: KeyHasher,
}

/// What an answer says.
#[derive(Debug)]
struct Answer {
    code: Code,
    /// Of each descriptor: whether it is admitted, and the hits that are left.
    statuses: Vec<(bool, u32)>,
    name: Option<String>,
}

type Parts<'a> = (&'a [(&'a str, &'a str)], Option<i64>);

impl Service {
    fn new(limit: &str) -> Self {
        Self::of(&format!("domain: llm\ndescriptors:\n- {{key: tenant, rate_limit: {{{limit}}}}}\n"))
    }

    fn of(rules: &str) -> Self {
        let stats = Arc::new(Stats::default());
        let store = MemoryStore::new(100_000);
        let limiter = Limiter::new(store, Arc::clone(&stats), DecisionSettings::default());
        let service = Self { limiter, stats, hasher: KeyHasher::with_secret([1, 2]) };
        service.load(rules);
        service
    }

    fn load(&self, rules: &str) {
        self.load_with(rules, &RuleDefaults::default());
    }

    fn load_with(&self, rules: &str, defaults: &RuleDefaults) {
        let mut domains = weir_config::parse("llm.yaml", rules).expect("valid rules").domains;
        defaults.apply(&mut domains);
        self.limiter.load(RuleSet::new(&domains, self.hasher));
    }

    /// Has rules of a control plane, which have a file of defaults with these `lines`.
    fn of_control_plane(rules: &str, lines: &str) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), lines).expect("a file");
        let service = Self::of(rules);
        let defaults = RuleDefaults::default().with_file(file.path()).expect("valid defaults");
        service.load_with(rules, &defaults);
        service
    }

    fn decide(&self, parts: &[Parts<'_>], millis: u64) -> Answer {
        let descriptors = parts.iter().map(|(entries, hits)| Descriptor {
            entries: entries.iter().map(|(key, value)| Entry { key, value }).collect(),
            limit: None,
            hits: hits.map(i64::unsigned_abs),
            refund: hits.is_some_and(|hits| hits < 0),
        });
        let request = Request { domain: "llm", descriptors: descriptors.collect(), hits: 0 };
        let options = TakeOptions { takes_names: true, ..TakeOptions::default() };
        let decided = self.limiter.decide_with(&request, at(millis), options, |verdict| Answer {
            code: verdict.code,
            statuses: verdict.statuses.iter().map(|s| (s.code == Code::Ok, s.remaining)).collect(),
            name: verdict.in_flight.as_ref().and_then(|places| places.name.as_deref().map(str::to_owned)),
        });
        match pin!(decided).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer.expect("a decision"),
            Poll::Pending => unreachable!("counters in memory wait for nothing"),
        }
    }

    /// Begins a request of a tenant with these hits of its own.
    fn start(&self, tenant: &str, hits: i64, millis: u64) -> Answer {
        self.decide(&[(&[("tenant", tenant)], Some(hits))], millis)
    }

    fn is_admitted(&self, tenant: &str, hits: i64, millis: u64) -> bool {
        self.start(tenant, hits, millis).code == Code::Ok
    }

    /// Begins a request, which must be admitted, and returns its name.
    fn begin(&self, tenant: &str, hits: i64, millis: u64) -> String {
        let answer = self.start(tenant, hits, millis);
        assert_eq!(answer.code, Code::Ok);
        answer.name.expect("a name")
    }

    /// Ends a request by its name: with a cost, or without.
    fn end(&self, name: &str, cost: Option<i64>, millis: u64) {
        let answer = self.decide(&[(&[("in_flight", name)], cost)], millis);
        assert_eq!((answer.code, answer.statuses), (Code::Ok, vec![(true, 0)]), "never rejected");
    }

    fn left(&self, tenant: &str, millis: u64) -> u32 {
        let answer = self.decide(&[(&[("tenant", tenant), ("in_flight", "check")], None)], millis);
        assert_eq!(answer.name, None, "a check holds nothing");
        answer.statuses[0].1
    }

    /// Returns what a metric of the rule says.
    fn metric(&self, name: &str) -> u64 {
        let all: BTreeMap<String, StatValue> = snapshot(&self.stats);
        match all.get(&format!("weir.{name}.llm.tenant")) {
            Some(StatValue::Counter(value) | StatValue::Gauge(value)) => *value,
            None => 0,
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// Random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    #[expect(clippy::cast_possible_truncation, reason = "below the length")]
    fn choose<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[self.below(N as u64) as usize]
    }

    #[expect(clippy::cast_precision_loss, reason = "some bits are enough")]
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Tokens, log-normal with a mean of 2,000, and the milliseconds of their stream: 1 s to 60 s.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive numbers")]
    fn cost(&mut self) -> (u64, u64) {
        let (a, b) = (1.0 - self.uniform(), self.uniform());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        let tokens = (((0.75 * normal).exp() * 1_500.0) as u64 + 1).min(30_000);
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let answer = tokens as f64 * (0.3 + 0.6 * self.uniform());
        (tokens, (1_000.0 * (0.5 + answer / 60.0).clamp(1.0, 60.0)) as u64)
    }
}

/// How callers use a budget.
#[derive(Clone, Copy)]
struct Load {
    limit: &'static str,
    /// Of the rule, whose other keys come from a control plane.
    defaults: Option<&'static str>,
    /// The hits with which a request begins.
    begins: i64,
    is_named: bool,
    /// So many of 100 requests are never settled, and end only if they have a name.
    lost: u64,
}

/// What they used of the budget of a minute, in percent: on average, and above it.
#[derive(Debug)]
struct Use {
    used: f64,
    above: f64,
}

/// What a caller does next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Start,
    End { name: Option<String>, tokens: u64, is_lost: bool },
}

const MINUTE: u64 = 60_000;

const BUDGET: u64 = 100_000;

/// 50 callers in a loop want three times the budget of 100,000 tokens a minute.
#[expect(clippy::cast_precision_loss, reason = "a percentage")]
fn run(load: Load) -> Use {
    const MINUTES: usize = 40;
    let mut sums = Use { used: 0.0, above: 0.0 };
    for seed in 1..=2 {
        let service = match load.defaults {
            Some(defaults) => Service::of_control_plane(load.limit, defaults),
            None => Service::new(load.limit),
        };
        let mut random = Random(seed);
        let mut queue: BinaryHeap<Reverse<(u64, u64, Step)>> =
            (0..50).map(|i| Reverse((random.below(1_000), i, Step::Start))).collect();
        let mut number = 50;
        let mut minutes = vec![0_u64; MINUTES + 2];
        while let Some(Reverse((now, _, step))) = queue.pop() {
            if now >= MINUTES as u64 * MINUTE {
                break;
            }
            number += 1;
            let next = match step {
                Step::Start => {
                    let answer = service.start("a", load.begins, now);
                    if answer.code == Code::Ok {
                        let (tokens, took) = random.cost();
                        let is_lost = random.below(100) < load.lost;
                        let leaves = is_lost && random.below(2) == 0;
                        let (tokens, took) = match (is_lost, leaves) {
                            (false, _) => (tokens, took),
                            (true, true) => (tokens / 2, took / 2),
                            (true, false) => (0, 100),
                        };
                        let name = answer.name.filter(|_| load.is_named);
                        (now + took, Step::End { name, tokens, is_lost })
                    } else {
                        (now + 1_000 + random.below(1_000), Step::Start)
                    }
                }
                Step::End { name, tokens, is_lost } => {
                    minutes[(now / MINUTE) as usize] += tokens;
                    let cost = (!is_lost).then_some(tokens.cast_signed());
                    match name {
                        Some(name) => service.end(&name, cost, now),
                        None if is_lost => {}
                        None => drop(service.decide(&[(&[("tenant", "a")], cost)], now)),
                    }
                    (now + random.below(200), Step::Start)
                }
            };
            queue.push(Reverse((next.0, number, next.1)));
        }
        let counted = &minutes[5..MINUTES];
        let percent = |tokens: u64| 100.0 * tokens as f64 / (counted.len() as u64 * BUDGET) as f64;
        sums.used += percent(counted.iter().sum()) / 2.0;
        sums.above += percent(counted.iter().map(|tokens| tokens.saturating_sub(BUDGET)).sum()) / 2.0;
    }
    sums
}

#[test]
fn callers_of_a_language_model_use_their_budget_and_hardly_exceed_it() {
    let auto = "requests: 100000, per: 1m, reserve: auto";
    let load = |limit, is_named, lost| Load { limit, defaults: None, begins: 0, is_named, lost };
    // as Envoy AI Gateway has Envoy Gateway make them, and its own quotas
    let usage =
        "domain: llm\ndescriptors:\n- {key: tenant, rate_limit: {unit: minute, requests_per_unit: 100000}}\n";
    let quota = "domain: llm\ndescriptors:\n- {key: tenant, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: \
                 100000}}\n";
    let gateway =
        |limit, begins, defaults| Load { defaults: Some(defaults), begins, ..load(limit, false, 0) };
    for (what, load, used, above) in [
        ("named", load(auto, true, 0), 93.0..=100.0, 3.0),
        ("nameless", load(auto, false, 0), 90.0..=103.0, 5.0),
        (
            "token bucket",
            load("requests: 100000, per: 1m, algorithm: token_bucket, reserve: auto", true, 0),
            96.0..=102.0,
            6.0,
        ),
        ("a number", load("requests: 100000, per: 1m, reserve: 2000", true, 0), 108.0..=125.0, 25.0),
        ("a tenth ends without a cost", load(auto, true, 10), 85.0..=103.0, 4.0),
        ("a tenth is never settled", load(auto, false, 10), 75.0..=100.0, 2.0),
        ("usage of a gateway", gateway(usage, 0, "reserve: auto"), 90.0..=103.0, 5.0),
        ("quota of a gateway", gateway(quota, 1, "reserve: auto"), 90.0..=103.0, 5.0),
        (
            "quota of a gateway, token bucket",
            gateway(quota, 1, "{algorithm: token_bucket, reserve: auto}"),
            96.0..=103.0,
            12.0,
        ),
    ] {
        let found = run(load);
        println!("{what}: {found:?}");
        assert!(used.contains(&found.used) && found.above <= above, "{what}: {found:?}");
    }
}

#[test]
fn starts_reserve_and_settlements_correct() {
    for (limit, named) in [
        ("requests: 10000, per: 365d, reserve: 2000", true),
        ("unit: year, requests_per_unit: 10000, reserve: 2000", true),
        ("requests: 10000, per: 365d, algorithm: sliding_window, reserve: 2000", true),
        ("requests: 10000, per: 365d, algorithm: token_bucket, reserve: 2000", true),
        ("tiers: [{requests: 10000, per: 365d}, {requests: 30000, per: 364d}], reserve: 2000", true),
        ("requests: 10000, per: 365d, reserve: 2000", false),
        ("requests: 10000, per: 365d, algorithm: token_bucket, reserve: 2000", false),
    ] {
        let service = Service::new(limit);
        // ten starts of no hits: five pass
        let answers: Vec<Answer> = (0..10).map(|_| service.start("a", 0, 0)).collect();
        let names: Vec<String> = answers.into_iter().filter_map(|answer| answer.name).collect();
        assert_eq!((names.len(), service.left("a", 1)), (5, 0), "{limit}");
        for (name, cost) in names.iter().zip([1_999, 2_000, 2_001, 2_500, 100]) {
            if named {
                service.end(name, Some(cost), 2);
            } else {
                service.decide(&[(&[("tenant", "a")], Some(cost))], 2);
            }
        }
        assert_eq!(service.left("a", 3), 1_400, "{limit}: settled exactly");
        // R does not fit
        assert!(!service.is_admitted("a", 0, 3) && service.left("a", 3) == 1_400, "{limit}");
        // beyond R, above the rest
        service.end(&service.begin("b", 1, 3), Some(20_000), 4);
        assert_eq!((service.left("b", 4), service.is_admitted("b", 0, 4)), (0, false), "{limit}");
        // an own hit counts for good
        let name = service.begin("c", 1, 3);
        assert_eq!(service.left("c", 4), 7_999, "{limit}");
        service.end(&name, None, 4);
        assert_eq!(service.left("c", 4), 9_999, "{limit}");
        for (metric, value) in [
            ("reserve_reserved_hits", 14_000),
            ("reserve_settled_hits", 28_600),
            ("reserve_beyond_hits", 18_501),
            ("reserve_unused_hits", 3_901),
            ("reserve_unmatched", 0),
        ] {
            assert_eq!(service.metric(metric), value, "{limit} {metric}");
        }
    }
}

/// A budget of 100 tokens, of which each request of a gateway may cost 20.
#[test]
fn requests_at_once_do_not_exceed_the_budget() {
    let service = Service::new("requests: 100, per: 1m, reserve: 20");
    let names: Vec<String> = (0..5).map(|_| service.begin("a", 0, 0)).collect();
    assert!(!service.is_admitted("a", 0, 0));
    for name in names {
        service.end(&name, Some(20), 1);
    }
    assert_eq!((service.left("a", 2), service.is_admitted("a", 0, 2)), (0, false));
}

#[test]
fn a_reservation_is_cut_to_what_the_limit_leaves() {
    let service = Service::new("requests: 10, per: 1m, reserve: 10");
    let name = service.begin("a", 1, 0);
    assert_eq!(service.left("a", 0), 0);
    service.end(&name, Some(0), 1);
    assert_eq!(service.left("a", 1), 9, "a cost of 0 with a name settles");
    assert!(!service.is_admitted("a", 1, 1), "the rest is too small");
}

#[test]
fn what_is_not_used_goes_back_into_its_own_window_only() {
    let late = 61_000;
    for (algorithm, left) in [("fixed_window", 100), ("token_bucket", 100), ("sliding_window", 90)] {
        let service = Service::new(&format!("requests: 100, per: 1m, algorithm: {algorithm}, reserve: 40"));
        let (first, second) = (service.begin("a", 0, 0), service.begin("a", 0, 59_000));
        service.end(&first, Some(10), 59_000);
        let open = service.left("a", 59_000);
        assert!(open >= 50, "{algorithm}: {open}");
        service.end(&second, Some(10), late);
        assert_eq!(service.left("a", late), left, "{algorithm}");
    }
}

#[test]
fn what_was_given_up_goes_back_although_all_starts_are_rejected() {
    for limit in ["requests: 100, per: 365d", "requests: 100, per: 365d, algorithm: sliding_window"] {
        let service = Service::new(&format!("{limit}, reserve: 50, give_up_after: 10s"));
        let names = [service.begin("a", 0, 0), service.begin("a", 0, 5_000)];
        for millis in (5_000..10_000).step_by(100) {
            assert!(!service.is_admitted("a", 0, millis), "{limit}");
        }
        assert!(service.is_admitted("a", 0, 10_000), "{limit}");
        // a sweep gives up the others, and a check asks for nothing
        for step in 0..service.limiter.store().sweep_steps() {
            service.limiter.store().sweep_step(step, at(3_600_000));
        }
        assert!(service.is_admitted("a", 0, 7_200_000), "{limit}");
        assert_eq!((service.left("a", 7_200_000), service.metric("reserve_given_up")), (50, 3), "{limit}");
        // late costs count in full
        for name in names {
            service.end(&name, Some(20), 7_200_000);
        }
        assert_eq!((service.left("a", 7_200_000), service.metric("reserve_unmatched")), (10, 2), "{limit}");
    }
}

#[test]
fn only_names_that_were_given_have_reserved_something() {
    let service = Service::of(
        "domain: llm\ndescriptors:\n- {key: tenant, rate_limit: {requests: 1000, per: 365d, reserve: 100}}\n\
         - {key: other, rate_limit: {requests: 1000, per: 365d, reserve: 100}}\n",
    );
    let name = service.begin("a", 0, 0);
    let place = RequestName::read(&name).expect("a name").place;
    let made_up = |i: u64, value: &str| {
        let entries = [Entry { key: "tenant", value }];
        RequestName::write(PlaceName::new(place.start(), place.serial() + i, false), [&entries[..]])
    };
    let memory = |service: &Service| service.limiter.store().usage().live;
    let live = memory(&service);
    for i in 1..100_000 {
        service.end(&made_up(i, "a"), None, 1);
    }
    assert_eq!((service.left("a", 1), memory(&service)), (900, live), "they end nothing");
    // their costs count: nobody who sends names can be trusted, and no cost is lost
    service.end(&made_up(7, "a"), Some(10), 1);
    assert_eq!(service.left("a", 1), 890);
    // the name of another rule
    let other = service.decide(&[(&[("other", "x")], Some(0))], 1).name.expect("a name");
    service.decide(&[(&[("tenant", "a"), ("in_flight", &other)], Some(5))], 1);
    assert_eq!(service.left("a", 1), 885);
    // a settlement, and an end of the same request; then both again
    service.decide(&[(&[("in_flight", &name)], Some(30)), (&[("in_flight", &name)], None)], 2);
    assert_eq!(service.left("a", 2), 955);
    service.end(&name, None, 3);
    assert_eq!(service.left("a", 3), 955);
    service.end(&name, Some(30), 3);
    assert_eq!(service.left("a", 3), 925, "a cost counts each time");
    // texts that are no names
    for text in ["", "check", ".", "AAAAAAAAAAAAAAAA", &"A".repeat(70_000)] {
        service.decide(&[(&[("in_flight", text)], Some(500))], 3);
    }
    assert_eq!(service.left("a", 3), 925);
}

#[test]
fn a_request_that_another_descriptor_rejects_keeps_its_own_hits_only() {
    for (scope, left) in [("", 999), ("all_or_nothing: true\n", 1_000)] {
        let service = Service::of(&format!(
            "domain: llm\n{scope}descriptors:\n- {{key: tenant, rate_limit: {{requests: 1000, per: 365d, reserve: 100}}}}\n\
             - {{key: rate, rate_limit: {{requests: 0, per: 365d}}}}\n\
             - {{key: slot, rate_limit: {{in_flight: 0}}}}\n"
        ));
        for (i, key) in ["rate", "slot"].into_iter().enumerate() {
            for is_first in [true, false] {
                let tenant = format!("{i}{is_first}");
                let begins = [("tenant", &*tenant)];
                let other = [(key, "x")];
                let mut parts: [Parts<'_>; 2] = [(&begins, Some(1)), (&other, Some(1))];
                if !is_first {
                    parts.reverse();
                }
                let answer = service.decide(&parts, 0);
                assert_eq!((answer.code, answer.name), (Code::OverLimit, None));
                assert_eq!(service.left(&tenant, 0), left, "{scope}{key} {is_first}");
            }
        }
        assert_eq!(service.metric("in_flight") + service.metric("in_flight_unknown_total"), 0);
        // a cost counts, whatever becomes of the rest
        let name = service.begin("c", 0, 0);
        let both = service.decide(&[(&[("in_flight", &name)], Some(300)), (&[("rate", "x")], Some(1))], 1);
        assert_eq!((both.code, service.left("c", 1)), (Code::OverLimit, 700));
    }
}

/// Envoy sends an end and a cost in either order.
#[test]
fn an_end_and_a_cost_in_one_message_settle_in_any_order() {
    let service = Service::new("requests: 1000, per: 365d, reserve: 100");
    for (i, costs) in [[None, Some(40)], [Some(40), None]].into_iter().enumerate() {
        let tenant = i.to_string();
        let name = service.begin(&tenant, 0, 0);
        let whole = [("in_flight", &*name)];
        service.decide(&costs.map(|cost| (&whole[..], cost)), 1);
        assert_eq!(service.left(&tenant, 1), 960);
        assert_eq!(service.metric("reserve_unmatched_total"), 0);
    }
}

#[test]
fn a_reload_keeps_what_is_reserved() {
    let rules = |reserve: &str| {
        format!(
            "domain: llm\ndescriptors:\n- {{key: tenant, rate_limit: {{requests: 1000, per: 365d{reserve}}}}}\n"
        )
    };
    let all = [", reserve: 100", ", reserve: auto", ", reserve: 0", ""];
    for (i, from) in all.iter().enumerate() {
        for to in all.iter().cycle().skip(i + 1).take(3) {
            let service = Service::of(&rules(from));
            let names: Vec<Option<String>> = (0..3).map(|_| service.start("a", 0, 0).name).collect();
            assert!(names.iter().all(|name| name.is_some() == (i < 2)), "{from}");
            service.load(&rules(to));
            for (name, cost) in names.iter().flatten().zip([Some(40), Some(300), None]) {
                service.end(name, cost, 1);
            }
            let name = service.start("a", 0, 2).name;
            if let Some(name) = name {
                service.end(&name, Some(0), 3);
            }
            // without 'reserve' nothing reads names: what was reserved counts for as long as the window
            if i < 2 && !to.is_empty() {
                assert_eq!(service.left("a", 3), 660, "{from} to {to}");
            }
            service.load(&rules(from));
            assert_eq!(service.start("a", 0, 4).code, Code::Ok, "{from} to {to} and back");
        }
    }
}

/// Rules of a control plane have limits on rates and on costs alike.
#[test]
fn a_default_begins_with_the_first_cost_of_a_rule() {
    let rules =
        "domain: llm\ndescriptors:\n- {key: tenant, rate_limit: {unit: year, requests_per_unit: 1000}}\n";
    for (reserve, left) in [("200", 795), ("auto", 986), ("0", 995)] {
        let service = Service::of_control_plane(rules, &format!("reserve: {reserve}\n"));
        for _ in 0..3 {
            let answer = service.start("a", 0, 0);
            assert_eq!((answer.code, answer.name, answer.statuses), (Code::Ok, None, vec![(true, 1_000)]));
        }
        service.decide(&[(&[("tenant", "a")], Some(5))], 1);
        assert_eq!(service.left("a", 1), 995);
        let name = service.start("b", 0, 2).name;
        assert_eq!((name.is_some(), service.left("b", 2)), (reserve != "0", left + 5), "{reserve}");
    }
}

#[test]
fn in_flight_and_reserve_have_one_place() {
    let service = Service::new("tiers: [{in_flight: 2}, {requests: 1000, per: 365d}], reserve: 100");
    let names = [service.begin("a", 0, 0), service.begin("a", 1, 0)];
    let refused = service.start("a", 0, 0);
    assert_eq!((refused.code, refused.name), (Code::OverLimit, None));
    service.end(&names[0], Some(150), 1);
    assert_eq!(service.left("a", 1), 749, "a refused request keeps nothing");
    // without a name a cost counts, and its place stays until it ends
    service.decide(&[(&[("tenant", "a")], Some(60))], 1);
    assert_eq!(service.left("a", 1), 689);
    assert!(service.is_admitted("a", 0, 1) && !service.is_admitted("a", 0, 1));
    service.end(&names[1], None, 2);
    assert_eq!(service.left("a", 2), 689, "of which the third request has a hundred");
    // names end in any order, and given up places are both
    assert!(service.is_admitted("a", 0, 2) && !service.is_admitted("a", 0, 2));
    assert!(service.is_admitted("a", 0, 600_002));
    assert_eq!(service.left("a", 600_002), 689);
}

#[test]
fn in_shadow_and_quota_mode_a_start_that_does_not_fit_holds_nothing() {
    for mode in ["shadow_mode", "quota_mode"] {
        let service = Service::of(&format!(
            "domain: llm\ndescriptors:\n- {{key: tenant, {mode}: true, rate_limit: {{requests: 100, per: 365d, reserve: \
             60}}}}\n- {{key: quota, quota_mode: true, rate_limit: {{requests: 9, per: 365d}}}}\n"
        ));
        let start = || service.decide(&[(&[("tenant", "a")], Some(0)), (&[("quota", "x")], Some(1))], 0);
        let (first, second) = (start(), start());
        assert_eq!((first.code, second.code), (Code::Ok, Code::Ok), "{mode}");
        assert!(first.name.is_some() && second.name.is_some(), "{mode}");
        assert_eq!(service.left("a", 0), 40, "{mode}");
        // each cost without a name finds the place of its own request
        service.decide(&[(&[("tenant", "a")], Some(30))], 1);
        assert_eq!((service.left("a", 1), service.metric("reserve_unmatched")), (10, 0), "{mode}");
        service.decide(&[(&[("tenant", "a")], Some(30))], 1);
        assert_eq!((service.left("a", 1), service.metric("reserve_unmatched")), (40, 0), "{mode}");
        service.decide(&[(&[("tenant", "a")], Some(30))], 1);
        assert_eq!((service.left("a", 1), service.metric("reserve_unmatched")), (10, 1), "{mode}");
    }
}

/// Starts, costs, ends and losses in any order, against the books: what counts is what was used, and what is reserved.
#[test]
fn what_counts_is_what_was_used_and_what_is_reserved() {
    for seed in 0..60 {
        let random = &mut Random(seed);
        let (most, give_up_after) = (1_000, 10_000);
        let reserve = random.choose([1, 50, 333, 1_000]);
        let algorithm = random.choose(["fixed_window", "sliding_window"]);
        let service = Service::new(&format!(
            "requests: {most}, per: 365d, algorithm: {algorithm}, reserve: {reserve}, give_up_after: 10s"
        ));
        let unknown = service.begin("a", 0, 0);
        service.end(&unknown, None, 0);
        let (mut now, mut used) = (0, 0_u64);
        let mut running: BTreeMap<u64, (String, u64)> = BTreeMap::new();
        let mut ended: Vec<String> = Vec::new();
        for number in 0..200 {
            now += random.below(1_000);
            running.retain(|started, (name, _)| {
                let is_running = now < *started / 1_000 + give_up_after;
                if !is_running {
                    ended.push(name.clone());
                }
                is_running
            });
            let held =
                |running: &BTreeMap<u64, (String, u64)>| running.values().map(|(_, hits)| hits).sum::<u64>();
            match random.below(8) {
                0..=3 => {
                    let own = random.below(2);
                    let hits = own + reserve.min(most - own);
                    let fits = used + held(&running) + hits <= most;
                    let answer = service.start("a", own.cast_signed(), now);
                    assert_eq!(answer.code == Code::Ok, fits, "seed {seed}, {number}");
                    if let Some(name) = answer.name {
                        used += own;
                        running.insert(now * 1_000 + number, (name, hits - own));
                    }
                }
                4 => {
                    if let Some((_, (name, _))) = running.pop_first() {
                        service.end(&name, None, now);
                        ended.push(name);
                    }
                }
                5 => {
                    let cost = random.below(2 * reserve) + 2;
                    running.pop_last();
                    service.decide(&[(&[("tenant", "a")], Some(cost.cast_signed()))], now);
                    used += cost;
                }
                6 => {
                    if let Some(name) = ended.pop() {
                        let cost = random.below(20);
                        service.end(&name, Some(cost.cast_signed()), now);
                        used += cost;
                    }
                }
                _ => {
                    if let Some((_, (name, _))) = running.pop_first() {
                        let cost = random.below(2 * reserve);
                        service.end(&name, Some(cost.cast_signed()), now);
                        used += cost;
                        ended.push(name);
                    }
                }
            }
            // an end asks for what was given up
            service.end(&unknown, None, now);
            let rest = most.saturating_sub(used + held(&running));
            assert_eq!(u64::from(service.left("a", now)), rest, "seed {seed}, {number}");
        }
    }
}

/// A million ends of names that nobody gave, and as many of names that were given once; entries and hits beyond all sense.
#[test]
fn what_callers_make_up_is_bounded() {
    for limit in ["reserve: auto", "tiers: [{in_flight: 100000}, {requests: 1000, per: 365d}], reserve: auto"]
    {
        let tier = if limit.starts_with("reserve") { "requests: 1000, per: 365d, " } else { "" };
        let service = Service::new(&format!("{tier}{limit}"));
        let held = service.begin("a", 0, 0);
        let place = RequestName::read(&held).expect("a name").place;
        let entries = [Entry { key: "tenant", value: "a" }];
        for i in 1..=1_000_000 / 64 / 2 {
            let other = PlaceName::new(place.start(), place.serial() + i, false);
            service.end(&RequestName::write(other, [&entries[..]; 64]), None, 1);
            if i == 1 {
                assert_eq!((service.metric("in_flight"), service.left("a", 1)), (1, 990), "{limit}");
            }
            service.end(&RequestName::write(place, [&entries[..]; 64]), None, 1);
        }
        assert_eq!((service.metric("in_flight"), service.left("a", 1)), (0, 1_000), "{limit}");
        // the most that fits into a message, below zero and above
        let long = "x".repeat(4_096);
        for tenant in ["a", &long] {
            service.decide(&[(&[("tenant", tenant)], Some(i64::MIN))], 2);
            service.decide(&[(&[("tenant", tenant), ("in_flight", &long)], Some(i64::MIN))], 2);
            assert_eq!(service.left(tenant, 2), 1_000, "{limit}");
            let name = service.begin(tenant, 0, 3);
            service.end(&name, Some(i64::MIN), 4);
            assert_eq!((service.metric("in_flight"), service.left(tenant, 4)), (0, 1_000), "{limit}");
            service.end(&name, Some(i64::MAX), 5);
            service.decide(&[(&[("tenant", tenant)], Some(i64::MAX))], 5);
            assert_eq!((service.left(tenant, 5), service.is_admitted(tenant, 0, 5)), (0, false), "{limit}");
        }
    }
}

/// Places beyond the bound of the table, eight for the room of a counter, are given up, and what they have reserved comes back.
#[test]
fn a_hundred_thousand_requests_are_bounded() {
    for limit in
        ["requests: 1000000, per: 365d", "tiers: [{in_flight: 100000}, {requests: 1000000, per: 365d}]"]
    {
        for (counters, places) in [(100_000, 100_000), (1_000, 4_000)] {
            let mut service = Service::new("reserve: 1, requests: 1, per: 1d");
            let settings = DecisionSettings::default();
            service.limiter = Limiter::new(MemoryStore::new(counters), Arc::clone(&service.stats), settings);
            service.load(&format!(
                "domain: llm\ndescriptors:\n- {{key: tenant, rate_limit: {{{limit}, reserve: 1}}}}\n"
            ));
            let unknown = service.begin("a", 0, 0);
            service.end(&unknown, None, 0);
            for i in 0..99_999 {
                service.begin("a", 0, i / 1_000);
            }
            let held = service.metric("in_flight");
            assert!((places - 100..=places).contains(&held), "{limit}: {held} of {places}");
            // any end asks for what was given up
            service.end(&unknown, None, 100);
            assert_eq!(u64::from(service.left("a", 100)), 1_000_000 - held, "{limit}");
        }
    }
}
