//! The rules that weir is given. Every limit is so high that nothing is refused, and every window so long that none ends.

use std::fmt::Write as _;

use tempfile::TempDir;

use super::message::{Asked, DOMAIN, Shape};

/// The file of limitador's limits.
pub(crate) const LIMITADOR: &str = "limits.yaml";

/// A directory with the rules that `asked` is about; `more` is put into each `rate_limit`.
pub(crate) fn write(asked: Asked, more: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("rules.yaml"), text(asked, more)).expect("a file in it");
    dir
}

/// A directory with the limits of limitador's that count what weir's rules count.
pub(crate) fn write_limitador(asked: Asked) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let mut text = String::new();
    for rule in 0..asked.rules {
        let (seconds, variable) = (365 * 86_400, format!("descriptors[0]['api-{rule:05}']"));
        // to write to a text cannot fail
        let _ = writeln!(
            text,
            "- {{ namespace: {DOMAIN}, max_value: 4000000000, seconds: {seconds}, conditions: [], variables: [\"{variable}\"] }}"
        );
    }
    std::fs::write(dir.path().join(LIMITADOR), text).expect("a file in it");
    dir
}

/// The rules themselves.
pub(crate) fn text(asked: Asked, more: &str) -> String {
    let mut text = format!("domain: {DOMAIN}\ndescriptors:\n");
    match asked.shape {
        Shape::One | Shape::Hundred => {
            for rule in 0..asked.rules {
                let limit = format!("{{ requests: 4000000000, per: 365d{more} }}");
                // to write to a text cannot fail
                let _ = writeln!(text, "  - key: api-{rule:05}\n    rate_limit: {limit}");
            }
        }
        Shape::TwoByThree => {
            let tiers = "[{ requests: 3000000000, per: 30d }, { requests: 4000000000, per: 365d }]";
            let _ = writeln!(
                text,
                "  - key: tenant
    descriptors:
      - key: path
        descriptors:
          - key: method
            rate_limit:
              name: both
              tiers: {tiers}"
            );
        }
    }
    text
}
