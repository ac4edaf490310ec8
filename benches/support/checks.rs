//! A request in bytes, and a weir without its doors to answer it.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt as _;
use prost::Message as _;
use weir::{
    Limiter,
    clock::ManualClock,
    limit::{
        Algorithm, Domain, KeyHasher, Limit, OverLimitPolicy, Period, Rule, RuleNode, RuleSet, Tier,
        Timestamp, Values,
    },
    observe::Stats,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
    server::grpc::Service,
    settings::{Flags, Settings},
    store::MemoryStore,
};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A request, and the service that answers it.
pub(crate) struct Check {
    service: Service<MemoryStore>,
    message: Vec<u8>,
}

/// Nested `keys`, with one rule of that many tiers at the end.
fn rules(keys: &[&str], tiers: usize) -> RuleSet {
    let tier = |seconds| Tier {
        requests: 2_000_000_000,
        period: Period::from_secs(seconds),
        algorithm: Algorithm::FixedWindow,
    };
    let tiers = [tier(60), tier(3_600)].into_iter().take(tiers).collect();
    let mut rule = Some(Rule::new(Limit::Tiers { tiers, over_limit_policy: OverLimitPolicy::Ignore }));
    let mut nodes = Vec::new();
    for key in keys.iter().rev() {
        nodes = vec![RuleNode { rule: rule.take(), children: nodes, ..RuleNode::new(key, Values::Any) }];
    }
    RuleSet::new(&[Domain { name: "shop".into(), nodes }], KeyHasher::random())
}

fn descriptor(keys: &[&str], tenant: &str) -> RateLimitDescriptor {
    let values = [tenant, "/v1/orders", "GET"];
    let entries =
        keys.iter().zip(values).map(|(key, value)| Entry { key: (*key).into(), value: value.into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

impl Check {
    /// The request of that name, whose counters are there already.
    pub(crate) fn new(name: &str) -> Self {
        let (keys, tenants, tiers): (&[&str], &[&str], usize) = match name {
            "two_by_three" => (&["tenant", "path", "method"], &["acme", "beta"], 2),
            _ => (&["tenant"], &["acme"], 1),
        };
        let descriptors = tenants.iter().map(|tenant| descriptor(keys, tenant)).collect();
        let message = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 };
        let stats = Arc::new(Stats::default());
        let settings =
            Settings::resolve(&Flags::default(), &BTreeMap::new()).expect("the defaults are right");
        let limiter = Limiter::new(MemoryStore::new(1_000), Arc::clone(&stats), settings.limiter);
        limiter.load(rules(keys, tiers));
        let service = Service::new(
            Arc::new(limiter),
            Arc::new(ManualClock::at(NOW)),
            &stats,
            settings.response_headers,
        );
        let check = Self { service, message: message.encode_to_vec() };
        check.answer();
        check
    }

    /// Its answer.
    pub(crate) fn answer(&self) -> Bytes {
        let answer = self.service.decide(&self.message, NOW).now_or_never();
        answer.expect("memory need not be waited for").expect("the message is in order")
    }
}
