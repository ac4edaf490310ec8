//! Measures the look-up of a rule among 10 to 10,000 rules, and among 100,000 networks.
//!
//! `cargo bench --bench matching`

use std::{hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use weir_limit::{
    Domain, Entry, IpNetwork, KeyHasher, Limit, ListedNetwork, Lookup, NetworkList, Pattern, Period, Rule,
    RuleNode, RuleSet, Values,
};

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

/// Numbers without a crate: xorshift.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A random address: every second one of IPv6, below `2001:db8::/32`.
fn address(state: &mut u64) -> String {
    let bits = random(state);
    if bits & 1 == 0 {
        let [a, b, c, d, ..] = bits.to_be_bytes();
        std::net::Ipv4Addr::new(a, b, c, d).to_string()
    } else {
        let bits = (0x2001_0db8 << 96) | (u128::from(bits) << 32) | (u128::from(random(state)) >> 32);
        std::net::Ipv6Addr::from_bits(bits).to_string()
    }
}

/// Random addresses among random networks, whose places are rarely in the CPU's caches.
fn networks(criterion: &mut Criterion) {
    let mut state = 7;
    let listed = |state: &mut u64| {
        let address = address(state);
        let shortest = if address.contains(':') { 40 } else { 12 };
        let length = shortest + random(state) % 21;
        let network = match IpNetwork::of_rule(&format!("{address}/{length}")) {
            Ok(network) | Err(weir_limit::NetworkError::HostBits(network)) => network,
            Err(error) => panic!("{address}: {error:?}"),
        };
        ListedNetwork { network, line: 1, column: 1 }
    };
    let mut list = || NetworkList::new("".into(), (0..100_000).map(|_| listed(&mut state)).collect());
    let mut set = None;
    let memory = allocation_counter::measure(|| {
        let nodes = vec![node("ip", Values::Networks(list().into()), true, Vec::new())];
        set = Some(RuleSet::new(&[Domain::new("edge", nodes)], KeyHasher::random()));
    });
    let Some(set) = set else { return };
    println!("100,000 networks: {} bytes, at most {}", memory.bytes_current, memory.bytes_max);
    let values: Vec<String> = (0..1 << 16).map(|_| address(&mut state)).collect();
    let mut i = 0;
    criterion.bench_function("network", |bencher| {
        bencher.iter(|| {
            i = (i + 1) % values.len();
            black_box(set.find("edge", &[Entry { key: "ip", value: &values[i] }]));
        });
    });
}

fn configured() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2))
}

criterion_group! { name = benches; config = configured(); targets = find, networks }
criterion_main!(benches);
