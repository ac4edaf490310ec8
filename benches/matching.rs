//! Measures the look-up of a rule among 10 to 10,000 rules.
//!
//! `cargo bench --bench matching`

use std::{hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weir_limit::{Domain, Entry, KeyHasher, Limit, Lookup, Pattern, Period, Rule, RuleNode, RuleSet, Values};

fn node(key: &str, values: Values, rule: bool, children: Vec<RuleNode>) -> RuleNode {
    let rule = rule.then(|| Rule::new(Limit::fixed_window(1_000, Period::from_secs(60))));
    RuleNode { rule, children, ..RuleNode::new(key, values) }
}

fn literal(value: &str) -> Values {
    Values::One(Pattern::new(value))
}

/// Returns a tenant/path/method tree with `rules` rules: five paths per tenant, and two methods per path.
fn tree(rules: usize) -> RuleSet {
    let methods = || ["GET", "PUT"].map(|method| node("method", literal(method), true, Vec::new())).to_vec();
    let paths = |n: usize| {
        (0..n).map(|path| node("path", literal(&format!("/v1/things/{path}")), false, methods())).collect()
    };
    let tenants = rules / 10;
    let tenants = (0..tenants.max(1)).map(|tenant| {
        let name = format!("tenant-{tenant}");
        node("tenant", literal(&name), false, paths(5))
    });
    RuleSet::new(&[Domain::new("shop", tenants.collect())], KeyHasher::random())
}

fn find(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("find");
    for rules in [10, 100, 1_000, 10_000] {
        let set = tree(rules);
        let tenant = format!("tenant-{}", rules / 20);
        let entries = [
            Entry { key: "tenant", value: &tenant },
            Entry { key: "path", value: "/v1/things/3" },
            Entry { key: "method", value: "GET" },
        ];
        let matches_rule = || matches!(set.find("shop", &entries), Lookup::Rule(_));
        assert!(matches_rule(), "the rule exists");
        let allocated = allocation_counter::measure(|| {
            black_box(matches_rule());
        });
        assert_eq!(allocated.count_total, 0, "an exact match allocates nothing");
        group.bench_with_input(BenchmarkId::new("exact", rules), &entries, |bencher, entries| {
            bencher.iter(|| black_box(set.find("shop", black_box(entries))));
        });
    }
    group.finish();
}

fn configured() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2))
}

criterion_group! { name = benches; config = configured(); targets = find }
criterion_main!(benches);
