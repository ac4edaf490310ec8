//! Requests with the largest numbers of hits, through decoding, decision, stats and response, in every mode and
//! algorithm. The profile of the tests panics on overflow.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use proptest::{collection::vec, prelude::*, sample::select};
use prost::Message as _;
use tokio::{runtime::Builder, time::sleep};
use weir_coordinate::{
    Coordinated, CoordinationSettings,
    simulated::{Network, SimulatedClock, SimulatedStore},
};
use weir_limit::{KeyHasher, RuleSet, Timestamp};
use weir_limiter::{DecisionSettings, Limiter};
use weir_observe::Stats;
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};
use weir_server::{
    grpc::Service,
    headers::{HeaderNames, HeaderStyle, ResponseHeaders},
};
use weir_store::{MemoryStore, Store, clock::Clock as _};

/// The start of an hour.
const EPOCH: Timestamp = Timestamp::from_secs(1_699_999_200);

const MODES: [&str; 5] = ["local", "interval", "lease", "strict", "auto"];

/// The limits, each of which admits 10 hits at once and is unused again after 30 seconds.
const LIMITS: [&str; 8] = [
    "unit: second, requests_per_unit: 10",
    "requests: 10, per: 10s",
    "requests: 10, per: 10s, algorithm: sliding_window",
    "requests: 10, per: 10s, algorithm: token_bucket",
    "requests: 10, per: 10s, algorithm: token_bucket, refill: step",
    "requests: 10, per: 10s, algorithm: token_bucket, strict: true",
    "tiers: [{ requests: 10, per: 1s }, { requests: 4294967295, per: 10s }]",
    "tiers: [{ requests: 10, per: 10s, algorithm: sliding_window }, { requests: 20, per: 10s }]",
];

/// Numbers of hits at the ends of the types that count them.
const HITS: [u64; 12] = [
    0,
    1,
    10,
    11,
    (1 << 31) - 1,
    u32::MAX as u64,
    (1 << 53) + 1,
    (1 << 62) + 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

#[derive(Clone, Debug)]
struct Step {
    instance: usize,
    /// Indexes of the rules, the hits, whether they are given back, and whether the request carries its own limit.
    descriptors: Vec<(usize, u64, bool, bool)>,
    wait: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let hits = prop_oneof![3 => select(&HITS[..]), 1 => any::<u64>()];
    let descriptor = (0..MODES.len() * LIMITS.len(), hits, any::<bool>(), proptest::bool::weighted(0.1));
    (0..2_usize, vec(descriptor, 1..6), select(vec![0_u64, 1, 20, 400, 3_000, 11_000]))
        .prop_map(|(instance, descriptors, wait)| Step { instance, descriptors, wait })
}

/// Returns the rules, one for each mode and limit.
fn rules(hasher: KeyHasher) -> RuleSet {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for (i, mode) in MODES.iter().enumerate() {
        for (j, limit) in LIMITS.iter().enumerate() {
            let index = i * LIMITS.len() + j;
            writeln!(text, "  - key: k{index}\n    rate_limit: {{ {limit}, coordination: {mode} }}")
                .expect("to memory");
        }
    }
    let loaded = weir_config::parse("f.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    RuleSet::new(&loaded.domains, hasher)
}

fn descriptor((rule, hits, refund, own): (usize, u64, bool, bool)) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![Entry { key: format!("k{rule}"), value: "v".into() }],
        hits_addend: Some(hits),
        is_negative_hits: refund,
        // the largest limit of an hour
        limit: own.then_some(RateLimitOverride { requests_per_unit: u32::MAX, unit: 3 }),
    }
}

async fn decide<S: Store>(
    service: &Service<S>,
    clock: &SimulatedClock,
    descriptors: Vec<RateLimitDescriptor>,
) -> RateLimitResponse {
    let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: u32::MAX };
    let response = service.decide(&request.encode_to_vec(), clock.now(), None).await.expect("a response");
    RateLimitResponse::decode(&response[5..]).expect("a message")
}

async fn run<S: Store>(stores: Vec<S>, clock: SimulatedClock, steps: &[Step]) {
    let hasher = KeyHasher::random();
    let headers = ResponseHeaders {
        styles: vec![
            HeaderStyle::LimitRemainingReset(HeaderNames::x_ratelimit()),
            HeaderStyle::Ietf,
            HeaderStyle::RetryAfter,
        ],
    };
    let services = stores.into_iter().map(|store| {
        let stats = Arc::new(Stats::default());
        let limiter = Limiter::new(store, Arc::clone(&stats), DecisionSettings::default());
        limiter.load(rules(hasher));
        Service::new(Arc::new(limiter), Arc::new(clock.clone()), &stats, headers.clone())
    });
    let services: Vec<Service<S>> = services.collect();
    // all know each other
    sleep(Duration::from_millis(2_500)).await;
    for step in steps {
        let service = &services[step.instance % services.len()];
        let descriptors = step.descriptors.iter().map(|part| descriptor(*part)).collect();
        let response = decide(service, &clock, descriptors).await;
        assert_eq!(response.statuses.len(), step.descriptors.len());
        sleep(Duration::from_millis(step.wait)).await;
    }
    // by then all limits are unused, whatever was counted and given back: 11 hits are too many, and one is not
    for (i, service) in services.iter().enumerate() {
        sleep(Duration::from_mins(1)).await;
        for rule in 0..MODES.len() * LIMITS.len() {
            for (hits, expected) in [(u64::MAX, Code::OverLimit), (1 << 32, Code::OverLimit)] {
                let response = decide(service, &clock, vec![descriptor((rule, hits, false, false))]).await;
                assert_eq!(response.overall_code(), expected, "{hits} hits of rule {rule} at {i}");
            }
        }
        sleep(Duration::from_mins(1)).await;
        for rule in 0..MODES.len() * LIMITS.len() {
            let response = decide(service, &clock, vec![descriptor((rule, 1, false, false))]).await;
            assert_eq!(response.overall_code(), Code::Ok, "rule {rule} at {i}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_number_of_hits_overflows(steps in vec(step(), 1..40)) {
        let runtime = || Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime().block_on(async {
            let clock = SimulatedClock::new(EPOCH);
            run(vec![MemoryStore::new(1_000)], clock, &steps).await;
        });
        runtime().block_on(async {
            let clock = SimulatedClock::new(EPOCH);
            let shared = SimulatedStore::new(clock.clone(), 7);
            let store = |i: usize| {
                let settings = CoordinationSettings { instance: format!("i{i}"), ..CoordinationSettings::default() };
                Coordinated::new(shared.connect(Network::default()), Arc::new(clock.clone()), settings)
            };
            run((0..2).map(store).collect(), clock.clone(), &steps).await;
        });
    }
}
