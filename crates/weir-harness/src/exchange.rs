//! An encoded request, and the gRPC service without its listener.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt as _;
use prost::Message as _;
use weir::settings::{Flags, Settings};
use weir_limit::{
    Domain, KeyHasher, Limit, OverLimitPolicy, Period, Rule, RuleNode, RuleSet, Tier, Timestamp, Values,
};
use weir_limiter::Limiter;
use weir_observe::Stats;
use weir_proto::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
    weir::v1::{AcquireRequest, acquire_request},
};
use weir_recording::RecordingOrder;
use weir_server::grpc::{AcquireService, Service};
use weir_store::{MemoryStore, clock::ManualClock};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// An encoded request, and the service that responds to it.
pub struct Exchange {
    service: Service<MemoryStore>,
    message: Vec<u8>,
}

/// A request that may wait and does not have to, and the service that responds to it.
pub struct AcquireExchange {
    service: AcquireService<MemoryStore>,
    message: Vec<u8>,
}

/// A service whose share of sampled decisions has settled, and requests for different keys.
pub struct Settled {
    exchange: Exchange,
    messages: Vec<Vec<u8>>,
}

/// Enough decisions for the share of sampled ones to settle.
const SETTLING: usize = 40_000;

/// Returns nested `keys`, with one rule of so many `tiers` at the innermost.
fn rules(keys: &[&str], tiers: usize) -> RuleSet {
    let tier = |seconds| Tier::fixed_window(2_000_000_000, Period::from_secs(seconds));
    let tiers = [tier(60), tier(3_600)].into_iter().take(tiers).collect();
    let mut rule = Some(Rule::new(Limit::Tiers { tiers, over_limit_policy: OverLimitPolicy::Ignore }));
    let mut nodes = Vec::new();
    for key in keys.iter().rev() {
        nodes = vec![RuleNode { rule: rule.take(), children: nodes, ..RuleNode::new(key, Values::Any) }];
    }
    RuleSet::new(&[Domain::new("shop", nodes)], KeyHasher::random())
}

fn descriptor(keys: &[&str], tenant: &str) -> RateLimitDescriptor {
    let values = [tenant, "/v1/orders", "GET"];
    let entries =
        keys.iter().zip(values).map(|(key, value)| Entry { key: (*key).into(), value: value.into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

impl Settled {
    /// The requests that [`Settled::respond`] makes: many gaps between two samples.
    const REQUESTS: usize = 2_560;

    pub fn new(hot_keys: &str) -> Self {
        let exchange = Exchange::with(&["tenant"], &["acme"], 1, &[("WEIR_HOT_KEYS", hot_keys)]);
        let message = |i: usize| {
            let descriptors = vec![descriptor(&["tenant"], &format!("tenant-{i}"))];
            RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 }.encode_to_vec()
        };
        let settled = Self { exchange, messages: (0..800).map(message).collect() };
        settled.make(SETTLING);
        settled
    }

    pub fn respond(&self) {
        self.make(Self::REQUESTS);
    }

    fn make(&self, requests: usize) {
        for message in self.messages.iter().cycle().take(requests) {
            let response = self.exchange.service.decide(message, NOW, None).now_or_never();
            std::hint::black_box(response.expect("the memory store never waits").expect("a valid message"));
        }
    }
}

impl Exchange {
    pub fn new(name: &str) -> Self {
        let recorded = name.strip_prefix("recorded_");
        let (keys, tenants, tiers): (&[&str], &[&str], usize) = match recorded.unwrap_or(name) {
            "two_by_three" => (&["tenant", "path", "method"], &["acme", "beta"], 2),
            _ => (&["tenant"], &["acme"], 1),
        };
        // the first decisions are all sampled, which later ones are not
        let record = if recorded.is_some() { "15m" } else { "off" };
        Self::with(keys, tenants, tiers, &[("WEIR_HOT_KEYS", "off"), ("WEIR_RECORD", record)])
    }

    fn with(keys: &[&str], tenants: &[&str], tiers: usize, variables: &[(&str, &str)]) -> Self {
        let descriptors = tenants.iter().map(|tenant| descriptor(keys, tenant)).collect();
        let message = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 };
        let stats = Arc::new(Stats::default());
        let environment: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let settings = Settings::resolve(&Flags::default(), &environment).expect("valid settings");
        let keep = settings.limiter.recording.keep;
        let limiter = Limiter::new(MemoryStore::new(1_000), Arc::clone(&stats), settings.limiter);
        limiter.load(rules(keys, tiers));
        if let Some(keep) = keep {
            limiter.recorder().start(RecordingOrder { keep, ..RecordingOrder::default() }, NOW);
        }
        let service = Service::new(
            Arc::new(limiter),
            Arc::new(ManualClock::at(NOW)),
            &stats,
            settings.response_headers,
        );
        let exchange = Self { service, message: message.encode_to_vec() };
        // creates the counters
        exchange.respond();
        exchange
    }

    pub fn respond(&self) -> Bytes {
        let response = self.service.decide(&self.message, NOW, None).now_or_never();
        response.expect("the memory store never waits").expect("a valid message")
    }
}

impl AcquireExchange {
    pub fn new(name: &str) -> Self {
        let service = Exchange::new(name).service.acquire_service();
        let entry = acquire_request::Entry { key: "tenant".into(), value: "acme".into() };
        let message = AcquireRequest {
            domain: "shop".into(),
            entries: vec![entry],
            hits: 1,
            max_wait: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
            ..AcquireRequest::default()
        };
        Self { service, message: message.encode_to_vec() }
    }

    pub fn respond(&self) -> Bytes {
        let response = self.service.decide(&self.message).now_or_never();
        response.expect("nobody waits").expect("a valid message")
    }
}
