//! Compares the look-up of networks with a list that is searched in order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::{collection::vec, prelude::*, sample::select};
use weir_limit::{
    Candidate, CountBy, CounterKey, Domain, Entry, IpNetwork, KeyHasher, Limit, ListedNetwork, Lookup,
    NetworkError, NetworkList, Period, Rule, RuleNode, RuleSet, Values,
};

/// A network as a test knows it: its bits from the first one, and how many of them count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlowNetwork {
    is_ipv4: bool,
    bits: u128,
    prefix: u32,
}

impl SlowNetwork {
    fn new(address: IpAddr, prefix: u32) -> Self {
        let (is_ipv4, bits) = match address {
            IpAddr::V4(address) => (true, u128::from(address.to_bits()) << 96),
            IpAddr::V6(address) => (false, address.to_bits()),
        };
        let mut network = Self { is_ipv4, bits: 0, prefix };
        for bit in 0..prefix {
            network.bits |= bits & (1 << (127 - bit));
        }
        network
    }

    fn holds(&self, other: &Self) -> bool {
        let is_same = |bit: u32| (self.bits ^ other.bits) & (1 << (127 - bit)) == 0;
        self.is_ipv4 == other.is_ipv4 && self.prefix <= other.prefix && (0..self.prefix).all(is_same)
    }

    fn text(&self) -> String {
        if self.is_ipv4 {
            format!("{}/{}", Ipv4Addr::from_bits((self.bits >> 96) as u32), self.prefix)
        } else {
            format!("{}/{}", Ipv6Addr::from_bits(self.bits), self.prefix)
        }
    }

    /// The same network of IPv4 in IPv6.
    fn mapped(&self) -> String {
        let address = Ipv4Addr::from_bits((self.bits >> 96) as u32).to_ipv6_mapped();
        let prefix = self.prefix + 96;
        format!("{address}/{prefix}")
    }
}

/// Few networks, so that they often lie in each other, of every length.
fn network() -> impl Strategy<Value = SlowNetwork> {
    let ipv4 = (select(vec![[10, 1], [10, 0], [11, 0], [0, 0], [255, 255]]), any::<[u8; 2]>(), 0..=32_u32);
    let ipv4 = ipv4.prop_map(|([a, b], [c, d], prefix)| {
        SlowNetwork::new(Ipv4Addr::new(a, b, c & 3, d & 3).into(), prefix)
    });
    let ipv6 = (select(vec![0x2001_0db8_u32, 0x2001_0db9, 0, 0xffff_ffff]), any::<[u8; 2]>(), 0..=128_u32);
    let ipv6 = ipv6.prop_map(|(first, [a, b], prefix)| {
        let bits = (u128::from(first) << 96) | (u128::from(a & 3) << 64) | u128::from(b & 3);
        SlowNetwork::new(Ipv6Addr::from_bits(bits).into(), prefix)
    });
    // IPv4 in IPv6 is no network of IPv6
    let ipv6 = ipv6.prop_filter("mapped", |network| network.prefix < 96 || network.bits >> 32 != 0xffff);
    let single = any::<bool>();
    (prop_oneof![ipv4, ipv6], single).prop_map(|(network, is_single)| {
        let most = if network.is_ipv4 { 32 } else { 128 };
        if is_single { SlowNetwork { prefix: most, ..network } } else { network }
    })
}

fn listed(text: &str) -> ListedNetwork {
    ListedNetwork { network: IpNetwork::of_rule(text).expect("a network"), line: 1, column: 1 }
}

fn list(texts: &[String]) -> Values {
    Values::Networks(NetworkList::new("".into(), texts.iter().map(|text| listed(text)).collect()).into())
}

fn node(name: &str, values: Values) -> RuleNode {
    let rule = Rule { name: Some(name.into()), ..Rule::new(Limit::fixed_window(1, Period::from_secs(1))) };
    RuleNode { rule: Some(rule), ..RuleNode::new("ip", values) }
}

fn found(rules: &RuleSet, value: &str) -> Option<String> {
    match rules.find("d", &[Entry { key: "ip", value }]) {
        Lookup::Rule(rule) => rule.rule.name.as_deref().map(str::to_owned),
        Lookup::NoRule | Lookup::UnknownDomain => None,
    }
}

fn key(rules: &RuleSet, value: &str) -> CounterKey {
    let entries = [Entry { key: "ip", value }];
    let Lookup::Rule(rule) = rules.find("d", &entries) else { panic!("no rule for {value}") };
    rules.counter_key(rule, "d", &entries)
}

fn rules(nodes: Vec<RuleNode>) -> RuleSet {
    RuleSet::new(&[Domain::new("d", nodes)], KeyHasher::with_secret([1, 2]))
}

/// The longest of `networks` that holds all of `value`, searched in order.
fn longest(networks: &[SlowNetwork], value: &SlowNetwork) -> Option<usize> {
    let mut longest: Option<usize> = None;
    for (i, network) in networks.iter().enumerate() {
        if network.holds(value) && longest.is_none_or(|longest| network.prefix > networks[longest].prefix) {
            longest = Some(i);
        }
    }
    longest
}

proptest! {
    #[test]
    fn the_longest_network_of_all_lists_wins(
        networks in vec(network(), 1..60),
        lists in 1..5_usize,
        values in vec(network(), 40),
    ) {
        let mut networks = networks;
        networks.dedup();
        let mut distinct: Vec<SlowNetwork> = Vec::new();
        for network in networks {
            if !distinct.contains(&network) {
                distinct.push(network);
            }
        }
        let nodes = (0..lists).map(|n| {
            let of_list = distinct.iter().enumerate().filter(|(i, _)| i % lists == n);
            let texts: Vec<String> = of_list.map(|(_, network)| network.text()).collect();
            if texts.is_empty() { node("none", Values::Any) } else { node(&n.to_string(), list(&texts)) }
        });
        let set = rules(nodes.filter(|node| node.values != Values::Any).collect());
        for value in &values {
            let expected = longest(&distinct, value).map(|i| (i % lists).to_string());
            prop_assert_eq!(found(&set, &value.text()), expected.clone(), "{} in {:?}", value.text(), &distinct);
            if value.is_ipv4 {
                prop_assert_eq!(found(&set, &value.mapped()), expected, "{}", value.mapped());
            }
        }
    }

    #[test]
    fn a_canonical_text_is_read_as_what_it_names(network in network()) {
        let read = IpNetwork::of_value(&network.text()).expect("a network");
        prop_assert_eq!(IpNetwork::of_rule(&read.to_string()), Ok(read));
        prop_assert_eq!(read.is_ipv4(), network.is_ipv4);
        if network.is_ipv4 {
            prop_assert_eq!(IpNetwork::of_value(&network.mapped()), Some(read));
        }
    }
}

/// Numbers without a crate: xorshift.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn a_hundred_thousand_networks_are_found_as_in_a_list() {
    let mut state = 7;
    let mut networks = Vec::new();
    let mut texts = std::collections::HashSet::new();
    while networks.len() < 100_000 {
        let bits = random(&mut state);
        let network = if bits & 1 == 0 {
            SlowNetwork::new(
                Ipv4Addr::from_bits((bits >> 32) as u32).into(),
                8 + u32::from(bits.to_le_bytes()[1]) % 25,
            )
        } else {
            let bits = (0x2001 << 112) | (u128::from(random(&mut state)) << 48) | u128::from(bits);
            SlowNetwork::new(Ipv6Addr::from_bits(bits).into(), 16 + u32::from(bits.to_le_bytes()[1]) % 113)
        };
        if texts.insert(network.text()) {
            networks.push(network);
        }
    }
    let texts: Vec<String> = networks.iter().map(SlowNetwork::text).collect();
    let (first, second) = texts.split_at(40_000);
    let set =
        rules(vec![node("first", list(first)), node("second", list(second)), node("rest", Values::Any)]);
    for i in 0..60 {
        // half of them in a network
        let mut value = networks[usize::try_from(random(&mut state) % 100_000).unwrap_or(0)];
        if i % 2 == 0 {
            let most = if value.is_ipv4 { 32 } else { 128 };
            value.bits |=
                (u128::from(random(&mut state)) << 64 >> value.prefix) & (u128::MAX << (128 - most));
            value.prefix = most;
        }
        let expected = match longest(&networks, &value) {
            None => "rest",
            Some(network) if network < 40_000 => "first",
            Some(_) => "second",
        };
        assert_eq!(found(&set, &value.text()).as_deref(), Some(expected), "{}", value.text());
    }
}

#[test]
fn networks_are_tried_after_values_and_before_patterns() {
    let value = |text: &str| Values::One(weir_limit::Pattern::new(text));
    let set = rules(vec![
        node("any", Values::Any),
        node("glob", value("10.*")),
        node("network", list(&["10.0.0.0/8".to_owned(), "::/0".to_owned()])),
        node("value", value("10.1.2.3")),
    ]);
    for (text, rule) in [
        ("10.1.2.3", "value"),
        // the value is text, and this is another
        ("::ffff:10.1.2.3", "network"),
        ("10.1.2.4", "network"),
        ("10.1.2.0/24", "network"),
        ("10.1.2.99/24", "network"),
        ("10.0.0.0/7", "glob"),
        ("10.x", "glob"),
        ("11.0.0.1", "any"),
        ("2001:db8::1", "network"),
        ("fe80::1%eth0", "any"),
        ("[2001:db8::1]:443", "any"),
        ("10.1.2.3:80", "glob"),
        ("10.1.2.4, 10.1.2.5", "glob"),
        ("10.1.2.4 ", "glob"),
        ("010.1.2.4", "any"),
        ("10.1.2.0/+24", "glob"),
        ("10.1.2.0/024", "glob"),
        ("10.1.2.0/33", "glob"),
        ("", "any"),
    ] {
        assert_eq!(found(&set, text).as_deref(), Some(rule), "{text}");
    }
}

#[test]
fn all_spellings_of_an_address_have_one_counter() {
    let by = |count_by: &str, values| {
        let count_by = CountBy::parse(count_by).expect("a way to count");
        rules(vec![RuleNode { count_by, ..node("r", values) }])
    };
    let networks = || list(&["10.0.0.0/8".to_owned(), "10.1.0.0/16".to_owned(), "2001:db8::/32".to_owned()]);
    let same = |rules: &RuleSet, a: &str, b: &str| key(rules, a) == key(rules, b);

    let all = by("list", networks());
    assert!(same(&all, "10.1.2.3", "2001:db8::1"));

    let network = by("network", networks());
    assert!(same(&network, "10.1.2.3", "::ffff:10.1.9.9") && same(&network, "10.1.2.3", "10.1.0.0/16"));
    assert!(!same(&network, "10.1.2.3", "10.2.2.3") && !same(&network, "10.1.2.3", "2001:db8::1"));

    for values in [networks(), Values::Any] {
        let address = by("address", values.clone());
        assert!(same(&address, "2001:db8::1", "2001:DB8:0:0:0:0:0:1"));
        assert!(same(&address, "10.1.2.3", "::ffff:a01:203") && same(&address, "10.1.2.3", "10.1.2.3/32"));
        assert!(!same(&address, "10.1.2.3", "10.1.2.4") && !same(&address, "10.1.2.0", "10.1.2.0/24"));

        let prefix = by("prefix/24/64", values);
        assert!(same(&prefix, "10.1.2.3", "10.1.2.0/24") && same(&prefix, "2001:db8::1", "2001:db8::/64"));
        assert!(!same(&prefix, "10.1.2.3", "10.1.3.3") && !same(&prefix, "2001:db8::1", "2001:db8:0:1::1"));
        // it is larger, and counts as itself
        assert!(!same(&prefix, "10.1.2.0/24", "10.1.2.0/23"));
    }
    let any = by("prefix/64", Values::Any);
    assert!(!same(&any, "10.1.2.3", "10.1.2.4"));
    assert!(!same(&any, "10.1.2.3", "10.1.2.3:80") && !same(&any, "a", "b") && same(&any, "a", "a"));
}

#[test]
fn texts_are_canonical_and_host_bits_are_no_network() {
    for (text, canonical) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.3/32", "10.1.2.3"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::/0", "::/0"),
        ("2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
        ("2001:0db8::/32", "2001:db8::/32"),
        ("2001:db8:0:1:1:1:1:1/128", "2001:db8:0:1:1:1:1:1"),
    ] {
        assert_eq!(IpNetwork::of_rule(text).map(|network| network.to_string()), Ok(canonical.to_owned()));
    }
    let right = |text: &str| IpNetwork::of_rule(text).expect("a network");
    assert_eq!(IpNetwork::of_rule("10.1.2.3/8"), Err(NetworkError::HostBits(right("10.0.0.0/8"))));
    assert_eq!(IpNetwork::of_rule("2001:db8::1/32"), Err(NetworkError::HostBits(right("2001:db8::/32"))));
    for text in
        ["10.0.0.0/", "/8", "10.0.0/8", "example.com", "10.0.0.0/8/8", "2001:db8::/129", "10.0.0.0/255.0.0.0"]
    {
        assert_eq!(IpNetwork::of_rule(text), Err(NetworkError::Malformed), "{text}");
    }
    for text in ["list", "network", "address", "prefix/64", "prefix/24/64", "prefix/0/0"] {
        assert_eq!(CountBy::parse(text).map(|count_by| count_by.to_string()).as_deref(), Some(text));
    }
    for text in ["value", "prefix", "prefix/", "prefix/129", "prefix/33/64", "prefix/24/64/1", "prefix/08"] {
        assert_eq!(CountBy::parse(text), None, "{text}");
    }
}

#[test]
fn long_lists_have_short_names() {
    let texts: Vec<String> = (0..20).map(|n| format!("10.0.{n}.0/24")).collect();
    let name = list(&texts).to_string();
    assert!(name.starts_with("10.0.0.0/24|10.0.1.0/24|") && name.ends_with("|10.0.15.0/24|+4"), "{name}");
}

#[test]
fn an_explanation_names_the_network() {
    let set = rules(vec![
        node("list", list(&["10.0.0.0/8".to_owned(), "10.1.0.0/16".to_owned()])),
        node("rest", Values::Any),
    ]);
    let tried = |value| {
        let explanation = set.explain("d", &[Entry { key: "ip", value }]);
        let attempts = &explanation.steps[0].attempts;
        attempts.iter().map(|attempt| (attempt.candidate, attempt.origin.is_some())).collect::<Vec<_>>()
    };
    let network = IpNetwork::of_rule("10.1.0.0/16").expect("a network");
    assert_eq!(
        tried("10.1.2.3"),
        [(Candidate::Literal, false), (Candidate::Networks(2, Some(network)), true)]
    );
    assert_eq!(
        tried("11.1.2.3"),
        [(Candidate::Literal, false), (Candidate::Networks(2, None), false), (Candidate::KeyOnly, true)]
    );
}
