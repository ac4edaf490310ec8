//! Warns of values that mean something elsewhere, and only themselves here: networks and regular expressions.

use super::super::{error::ConfigReport, scalar::brief, yaml::YamlPosition};
use weir_limit::IpNetwork;

/// The key of Envoy's action that sends the network of an address, as a literal.
const MASKED: &str = "masked_remote_address";

/// What only regular expressions have, or hardly anything else.
const SIGNS: [&str; 22] = [
    "/.*", "/.+", "(.*", "(.+", "(?:", "(?i", "(?=", "(?!", "[^", "a-z]", "A-Z]", "0-9]", r"\.", r"\/",
    r"\d+", r"\d*", r"\d{", r"\w+", r"\w*", r"\w{", r"\s+", r"\s*",
];

pub(crate) fn warn(key: &str, text: &str, at: YamlPosition, report: &mut ConfigReport) {
    let shown = brief(text);
    if let Some(network) = IpNetwork::of_value(text).filter(|_| text.contains('/')) {
        // Envoy sends exactly such a text
        if key != MASKED {
            report.warn(
                at,
                format!(
                    "'{shown}' matches only this text: write 'match: cidr' and 'values: [{network}]' to match addresses"
                ),
            );
        }
    } else if is_regex(text) {
        let means =
            if text.contains('*') { "in it only '*' is special" } else { "it matches only this text" };
        let right = instead_of(text);
        report.warn(at, format!("'{shown}' is no regular expression here, and {means}: {right} instead"));
    }
}

/// Ordinary paths, names and globs are none: globs may end in a dot before a star, and names have dollar signs.
fn is_regex(text: &str) -> bool {
    let has_any = [".*", ".+"].iter().any(|any| text.contains(any));
    (text.starts_with('^') && text.len() > 1)
        || (text.ends_with('$') && has_any)
        || ["(.*", ".*", ".+"].iter().any(|start| text.starts_with(start))
        // hidden files
        || (text != "/.*" && SIGNS.iter().any(|sign| text.contains(sign)))
        || alternatives(text).is_some()
}

fn alternatives(text: &str) -> Option<Vec<&str>> {
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text);
    let parts: Vec<&str> = inner.split('|').collect();
    (parts.len() > 1 && parts.iter().all(|part| !part.trim().is_empty())).then_some(parts)
}

fn instead_of(text: &str) -> String {
    let general = "write '*' for any text, or several values in 'values',";
    let inner = text.strip_prefix('^').unwrap_or(text);
    let inner = inner.strip_suffix('$').unwrap_or(inner);
    let parts = alternatives(inner).unwrap_or_else(|| vec![inner]);
    let globs: Vec<String> = parts.iter().map(|part| glob(part)).collect();
    let is_plain = |glob: &String| {
        !glob.is_empty() && !glob.contains(['^', '$', '(', ')', '[', ']', '{', '}', '+', '?', '\\', '|', ','])
    };
    if !globs.iter().all(is_plain) {
        return general.to_owned();
    }
    match &*globs {
        [any] if any == "*" => "leave 'value' out, which matches any value,".to_owned(),
        [one] => format!("write '{}'", brief(one)),
        several => format!("write 'values: [{}]'", brief(&several.join(", "))),
    }
}

/// A glob only if `part` has nothing but `.*`, `.+` and `\.`.
fn glob(part: &str) -> String {
    part.trim().replace(".*", "*").replace(".+", "*").replace(r"\.", ".").replace(r"\/", "/")
}
