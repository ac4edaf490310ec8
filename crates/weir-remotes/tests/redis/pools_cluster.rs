//! Instances that share pools on a Redis Cluster: each pool on one node, whose loss affects no other pool.

use std::sync::Arc;

use weir_coordinate::{Coordinated, CoordinationSettings};
use weir_limit::{
    Coordination, Descriptor, Domain, Entry, KeyHasher, Limit, Matched, OnStoreFailure, OverLimitPolicy,
    Period, Request, Rule, RuleCoordination, RuleNode, RuleSet, Scope, Tier, Values, share::Sharing,
};
use weir_remotes::redis::{RedisRemote, Topology};
use weir_store::{
    Store as _,
    clock::{Clock as _, SystemClock},
};

use crate::support::{Cluster, address, addresses, settings, until};

const CAPACITY: u32 = 40;

/// Longer than any test.
const CYCLE: Period = Period::from_secs(365 * 86_400);

struct Instance {
    store: Coordinated<RedisRemote>,
    rules: RuleSet,
}

// === impl Instance ===

impl Instance {
    fn new(cluster: &Cluster, number: usize, mode: Coordination) -> Self {
        let tier = Tier::fixed_window(CAPACITY, CYCLE);
        let limit = Limit::Tiers { tiers: [tier].into(), over_limit_policy: OverLimitPolicy::Ignore };
        let rule = Rule {
            sharing: Some(Arc::new(Sharing::default())),
            coordination: RuleCoordination { mode: Some(mode), ..RuleCoordination::default() },
            ..Rule::new(limit)
        };
        let client = RuleNode { rule: Some(rule), ..RuleNode::new("client", Values::Any) };
        let service = RuleNode { children: vec![client], ..RuleNode::new("service", Values::Any) };
        let rules = RuleSet::new(&[Domain::new("d", vec![service])], KeyHasher::random());
        let mut redis = settings(address(cluster.nodes[0].port()));
        redis.main.topology = Topology::Cluster(addresses(&cluster.nodes));
        let own = CoordinationSettings {
            instance: format!("i{number}"),
            // a busy machine delays replies
            budget: Period::from_secs(5),
            heartbeat: Period::from_millis(500),
            on_store_failure: OnStoreFailure::Deny,
            ..CoordinationSettings::default()
        };
        let remote = RedisRemote::new(redis).expect("no files are needed");
        Self { store: Coordinated::new(remote, Arc::new(SystemClock), own), rules }
    }

    async fn admits(&self, service: &str, client: &str) -> bool {
        let entries = [Entry { key: "service", value: service }, Entry { key: "client", value: client }];
        let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
        let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits: 1 };
        let matched = Matched::new(&self.rules, &request);
        let decisions = self.store.take(&matched.checks, Scope::Descriptor, SystemClock.now()).await;
        !decisions.expect("a coordinated store always decides")[0].over
    }
}

/// Has both members ask at all instances, up to `times` each. Returns the hits that were admitted.
async fn ask(fleet: &[Instance], service: &str, times: u32) -> u32 {
    let mut admitted = 0;
    for _ in 0..times {
        for instance in fleet {
            for client in ["A", "B"] {
                admitted += u32::from(instance.admits(service, client).await);
            }
        }
    }
    admitted
}

#[tokio::test]
async fn each_pool_is_on_one_node_and_shared_by_all_instances() {
    for mode in [Coordination::Lease, Coordination::Strict] {
        let mut cluster = Cluster::start().await;
        let fleet: Vec<Instance> = (0..3).map(|i| Instance::new(&cluster, i, mode)).collect();
        until("all instances know each other", async || {
            fleet.iter().all(|instance| instance.store.instances() == 3)
        })
        .await;
        // the instances are registered on a node that stays
        let lost = (cluster.holder("weir:instances").1 + 1) % 3;
        let tag = |service: char| format!("{{d|service={service}|client}}");
        let on = |node: usize| {
            let found = ('a'..='z').find(|service| cluster.holder(&tag(*service)).1 == node);
            found.expect("each node holds a third of the slots").to_string()
        };
        let services: Vec<String> = (0..3).map(on).collect();
        for service in &services {
            assert_eq!(ask(&fleet, service, 3).await, 18, "{mode:?}");
        }
        // all keys of a pool are where its tag says
        for (node, service) in services.iter().enumerate() {
            let tag = tag(service.chars().next().expect("a name"));
            for (other, server) in cluster.nodes.iter().enumerate() {
                let keys: Vec<String> = server.send(&["KEYS", "{d|*"]);
                let own = keys.iter().filter(|key| key.starts_with(&tag)).count();
                assert_eq!(own > 0, other == node, "{keys:?}");
            }
        }
        // the others have what is left, and no more
        cluster.nodes[lost].kill();
        let kept: Vec<&String> = services
            .iter()
            .enumerate()
            .filter(|(node, _)| *node != lost)
            .map(|(_, service)| service)
            .collect();
        for service in kept {
            assert_eq!(ask(&fleet, service, CAPACITY).await, CAPACITY - 18, "{mode:?}");
        }
        let most = ask(&fleet, &services[lost], 4).await;
        assert!(most <= CAPACITY - 18, "{mode:?}: {most}");
    }
}
