//! What callers probably meant by names that no rule has.

use weir_limit::{Entry, RuleSet};
use weir_observe::spelling::nearest;

/// The most names that are compared with one that no rule has.
const MOST_COMPARED: usize = 1_000;

/// The rule's domain or key that is probably meant, if no rule has the `domain` or a key of `entries`.
pub fn did_you_mean<'a>(rules: &'a RuleSet, domain: &str, entries: &[Entry<'_>]) -> Option<&'a str> {
    if !rules.has_domain(domain) {
        return nearest(domain, rules.domains().take(MOST_COMPARED));
    }
    let key = rules.unknown_key(domain, entries)?;
    nearest(key, rules.keys_beside_unknown(domain, entries).take(MOST_COMPARED))
}
