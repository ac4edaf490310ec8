//! Measures the memory of a live counter: one million counters under a tenant/path/method rule in which every value is
//! part of the counter's key.
//!
//! `cargo bench --bench counters`

use weir_limit::{
    Descriptor, Domain, Entry, KeyHasher, Limit, Matched, Period, Request, Rule, RuleNode, RuleSet, Scope,
    Timestamp, Values,
};
use weir_store::MemoryStore;

const COUNTERS: usize = 1_000_000;

fn rules() -> RuleSet {
    let mut nodes = Vec::new();
    for key in ["method", "path", "tenant"] {
        let limit = Limit::fixed_window(1_000, Period::from_secs(60));
        let rule = (key == "method").then(|| Rule::new(limit));
        nodes = vec![RuleNode { rule, children: nodes, ..RuleNode::new(key, Values::Any) }];
    }
    RuleSet::new(&[Domain::new("shop", nodes)], KeyHasher::random())
}

fn main() {
    let rules = rules();
    let store = MemoryStore::new(COUNTERS);
    let now = Timestamp::from_secs(1_000_000);
    let measured = allocation_counter::measure(|| {
        for i in 0..COUNTERS {
            let (tenant, path) = (format!("tenant-{}", i % 1_000), format!("/v1/organizations/{i}/product"));
            let entries = [("tenant", tenant.as_str()), ("path", &path), ("method", "GET")];
            let entries = entries.map(|(key, value)| Entry { key, value });
            let descriptor = Descriptor { entries: entries.into_iter().collect(), ..Descriptor::default() };
            let request =
                Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits: 1 };
            let matched = Matched::new(&rules, &request);
            let decisions = store.decide(&matched.checks, Scope::Descriptor, now);
            assert!(!decisions[0].over);
        }
    });
    let live = store.usage().live;
    let bytes = measured.bytes_current;
    #[expect(clippy::cast_precision_loss, reason = "printed for people")]
    let each = bytes as f64 / live as f64;
    println!("{live} live counters hold {bytes} bytes: {each:.1} bytes per counter");
    assert_eq!(live, COUNTERS);
}
