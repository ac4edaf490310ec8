//! Compares the compiled matcher with a simple one, on random trees and requests.

use proptest::{collection::vec, option, prelude::*, sample::select};
use weir_limit::{
    Domain, Entry, Explanation, KeyHasher, Limit, Lookup, Outcome, Pattern, Period, Rule, RuleNode, RuleSet,
    Values,
};

/// Few keys and values, so that literals, wildcards and ambiguous names often compete.
const KEYS: [&str; 3] = ["a", "b", "a_b"];
const VALUES: [&str; 7] = ["", "x", "xy", "xyx", "b_x", "*", "x*"];
const PATTERNS: [&str; 9] = ["x", "xy", "x*", "*x", "*", "x*x", "*y*", "b_x", "xyx"];

fn values() -> impl Strategy<Value = Values> {
    let pattern = || select(&PATTERNS[..]).prop_map(Pattern::new);
    prop_oneof![
        2 => Just(Values::Any),
        3 => pattern().prop_map(Values::One),
        1 => vec(pattern(), 1..3).prop_map(Values::Of),
    ]
}

fn rule() -> impl Strategy<Value = Option<Rule>> {
    option::of(Just(Rule::new(Limit::fixed_window(1, Period::from_secs(1)))))
}

fn nodes() -> impl Strategy<Value = Vec<RuleNode>> {
    let node =
        |children: BoxedStrategy<Vec<RuleNode>>| {
            (select(&KEYS[..]), values(), rule(), children).prop_map(|(key, values, rule, children)| {
                RuleNode { rule, children, ..RuleNode::new(key, values) }
            })
        };
    let leaves = vec(node(Just(Vec::new()).boxed()), 0..5).boxed();
    leaves.prop_recursive(3, 60, 5, move |below| vec(node(below), 1..5).boxed())
}

/// Gives every rule a unique name, so that two results can be compared.
fn name(nodes: &mut [RuleNode], next: &mut u32) {
    for node in nodes {
        if let Some(rule) = &mut node.rule {
            rule.name = Some(next.to_string().into());
            *next += 1;
        }
        name(&mut node.children, next);
    }
}

/// Finds a rule by following the specification literally.
fn naive<'a>(level: &'a [RuleNode], entries: &[(&str, &str)]) -> Option<&'a Rule> {
    let ((key, value), rest) = entries.split_first()?;
    let of_key = || level.iter().filter(|node| node.key == *key);
    let literal = || of_key().find(|node| node.values.patterns().any(|pattern| pattern.text() == *value));
    let wildcard = || {
        of_key()
            .flat_map(|node| node.values.patterns().map(move |pattern| (node, pattern)))
            .find(|(_, pattern)| pattern.is_wildcard() && slow_match(pattern.text(), value))
            .map(|(node, _)| node)
    };
    let key_only = || of_key().find(|node| node.values == Values::Any);
    let node = literal().or_else(wildcard).or_else(key_only)?;
    if rest.is_empty() { node.rule.as_ref() } else { naive(&node.children, rest) }
}

/// Matches a pattern by trying every length for every star.
fn slow_match(pattern: &str, value: &str) -> bool {
    match pattern.split_at_checked(1) {
        None => value.is_empty(),
        Some(("*", rest)) => (0..=value.len()).any(|skip| slow_match(rest, &value[skip..])),
        Some((head, rest)) => value.strip_prefix(head).is_some_and(|value| slow_match(rest, value)),
    }
}

proptest! {
    #[test]
    fn the_compiled_matcher_agrees_with_a_naive_matcher(
        mut tree in nodes(),
        requests in vec(vec((select(&KEYS[..]), select(&VALUES[..])), 0..5), 1..20),
    ) {
        name(&mut tree, &mut 0);
        let domain = Domain::new("d", tree);
        let set = RuleSet::new(std::slice::from_ref(&domain), KeyHasher::random());
        for request in requests {
            let entries: Vec<_> = request.iter().map(|(key, value)| Entry { key, value }).collect();
            let found = match set.find("d", &entries) {
                Lookup::Rule(compiled) => compiled.rule.name.clone(),
                Lookup::NoRule => None,
                Lookup::UnknownDomain => panic!("the domain is known"),
            };
            let expected = naive(&domain.nodes, &request).and_then(|rule| rule.name.clone());
            prop_assert_eq!(found, expected, "for {:?}", request);
        }
    }

    #[test]
    fn an_explanation_says_how_far_a_descriptor_matched(
        tree in nodes(),
        requests in vec(vec((select(&KEYS[..]), select(&VALUES[..])), 0..5), 1..20),
    ) {
        let domain = Domain::new("d", tree);
        let set = RuleSet::new(std::slice::from_ref(&domain), KeyHasher::random());
        for request in requests {
            let entries: Vec<_> = request.iter().map(|(key, value)| Entry { key, value }).collect();
            let Explanation { steps, outcome, .. } = set.explain("d", &entries);
            // the steps before one that fails: each ends at a descriptor
            let reached = steps.iter().filter(|step| step.attempts.iter().any(|a| a.origin.is_some())).count();
            match outcome {
                Outcome::Rule(_) | Outcome::NoLimit { .. } => prop_assert_eq!(reached, request.len()),
                Outcome::NoEntries => prop_assert!(request.is_empty()),
                Outcome::NoMatch => prop_assert_eq!((steps.len(), reached), (reached + 1, steps.len() - 1)),
                Outcome::TooManyEntries { depth, .. } => {
                    prop_assert!(depth > 0 && depth < request.len());
                    prop_assert_eq!((steps.len(), reached), (depth, depth));
                }
                Outcome::UnknownDomain(_) => panic!("the domain is known"),
            }
        }
    }

    #[test]
    fn a_pattern_matches_like_a_search_over_all_star_lengths(
        pattern in "[ab*]{0,6}",
        value in "[ab]{0,8}",
    ) {
        prop_assert_eq!(Pattern::new(&pattern).matches(&value), slow_match(&pattern, &value));
    }
}

#[test]
fn a_domain_without_descriptors_matches_nothing() {
    let domain = Domain::new("d", Vec::new());
    let set = RuleSet::new(&[domain], KeyHasher::random());
    let Explanation { steps, outcome, .. } = set.explain("d", &[Entry { key: "a", value: "x" }]);
    assert!(matches!(outcome, Outcome::NoMatch), "{outcome:?}");
    assert_eq!(steps.len(), 1);
}
