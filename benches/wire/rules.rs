//! The rules of the benchmark. Every limit is so high that no request is rejected, and every window so long that none
//! ends.

use std::fmt::Write as _;

use tempfile::TempDir;

use super::message::{DOMAIN, Shape, Workload};

/// The name of limitador's file of limits.
pub(crate) const LIMITADOR: &str = "limits.yaml";

/// Returns a directory with the rules of `workload`; `more` is added to each `rate_limit`.
pub(crate) fn write(workload: Workload, more: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("rules.yaml"), text(workload, more)).expect("a file in it");
    dir
}

/// Returns a directory with the equivalent limits for limitador.
pub(crate) fn write_limitador(workload: Workload) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let mut text = String::new();
    for rule in 0..workload.rules {
        let (seconds, variable) = (365 * 86_400, format!("descriptors[0]['api-{rule:05}']"));
        // writing to a String cannot fail
        let _ = writeln!(
            text,
            "- {{ namespace: {DOMAIN}, max_value: 4000000000, seconds: {seconds}, conditions: [], variables: [\"{variable}\"] }}"
        );
    }
    std::fs::write(dir.path().join(LIMITADOR), text).expect("a file in it");
    dir
}

/// Returns the rules.
pub(crate) fn text(workload: Workload, more: &str) -> String {
    let mut text = format!("domain: {DOMAIN}\ndescriptors:\n");
    match workload.shape {
        Shape::One | Shape::Hundred => {
            for rule in 0..workload.rules {
                let period = if workload.turnover.is_some() { "10s" } else { "365d" };
                let limit = format!("{{ requests: 4000000000, per: {period}{more} }}");
                // writing to a String cannot fail
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
