//! What a replay has found.

use std::fmt::Write as _;

use serde_json::{Value, json};
use weir_limit::{Period, Timestamp};

/// Hits, as they were decided before and as other rules decide them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldNew {
    pub admitted_old: u64,
    pub rejected_old: u64,
    pub admitted_new: u64,
    pub rejected_new: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleChange {
    /// Its path: that of the new rule, or of the old one if nothing limits the descriptors any more.
    pub rule: String,
    pub hits: OldNew,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub rule: String,
    /// The entries, such as `tenant=acme`.
    pub text: String,
    pub hits: OldNew,
}

/// Requests over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplaySeries {
    pub from: Timestamp,
    /// The time of a point.
    pub step: Period,
    pub points: Vec<OldNew>,
}

/// What was decided, and what would have been.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    pub requests: u64,
    pub newly_rejected: u64,
    pub newly_admitted: u64,
    /// The rule that newly rejects the most requests, and how many.
    pub first_cause: Option<(String, u64)>,
    /// Sentences: what a replay cannot know.
    pub unknown: Vec<String>,
    /// Those that change most first.
    pub rules: Vec<RuleChange>,
    /// The 20 that change most.
    pub keys: Vec<KeyChange>,
    pub series: ReplaySeries,
}

// === impl OldNew ===

impl OldNew {
    pub(crate) fn add_old(&mut self, is_over: bool, hits: u64) {
        let count = if is_over { &mut self.rejected_old } else { &mut self.admitted_old };
        *count = count.saturating_add(hits);
    }

    pub(crate) fn add_new(&mut self, is_over: bool, hits: u64) {
        let count = if is_over { &mut self.rejected_new } else { &mut self.admitted_new };
        *count = count.saturating_add(hits);
    }

    /// By how many hits rejections differ.
    pub const fn change(&self) -> u64 {
        self.rejected_old.abs_diff(self.rejected_new)
    }

    fn json(&self) -> Value {
        let Self { admitted_old, rejected_old, admitted_new, rejected_new } = *self;
        json!({
            "admitted_old": count(admitted_old),
            "rejected_old": count(rejected_old),
            "admitted_new": count(admitted_new),
            "rejected_new": count(rejected_new),
        })
    }
}

/// Above 2^53 as text, since not every reader has such numbers.
fn count(number: u64) -> Value {
    if number > 1 << 53 { number.to_string().into() } else { number.into() }
}

// === impl Comparison ===

impl Comparison {
    /// The share of requests that were admitted and are rejected now, 0 to 1.
    pub fn increase(&self) -> f64 {
        share(self.newly_rejected, self.requests)
    }

    /// The result in a sentence.
    pub fn sentence(&self) -> String {
        if self.requests == 0 {
            return "The recording has no requests.".to_owned();
        }
        if self.newly_rejected == 0 && self.newly_admitted == 0 {
            return "No request would be decided in another way.".to_owned();
        }
        let mut sentence = match self.newly_rejected {
            0 => "No request would newly be rejected".to_owned(),
            newly => format!("{} of requests would newly be rejected", percent(newly, self.requests)),
        };
        if let Some((rule, requests)) = &self.first_cause {
            let whole = percent(*requests, self.newly_rejected);
            // writing to a string cannot fail
            let _ = write!(sentence, ", {whole} of them by `{rule}`");
        }
        if self.newly_admitted > 0 {
            let newly = percent(self.newly_admitted, self.requests);
            let _ = write!(sentence, "; {newly} would newly be admitted");
        }
        sentence + "."
    }

    /// As `GET /v1/openapi.json` describes it.
    pub fn json(&self) -> Value {
        let with = |names: Value, hits: &OldNew| {
            let (mut object, Value::Object(counts)) = (names, hits.json()) else { return Value::Null };
            if let Value::Object(object) = &mut object {
                object.extend(counts);
            }
            object
        };
        let rule = |rule: &RuleChange| with(json!({ "rule": rule.rule }), &rule.hits);
        let key = |key: &KeyChange| with(json!({ "rule": key.rule, "text": key.text }), &key.hits);
        json!({
            "sentence": self.sentence(),
            "requests": count(self.requests),
            "newly_rejected": count(self.newly_rejected),
            "newly_admitted": count(self.newly_admitted),
            "unknown": self.unknown,
            "rules": self.rules.iter().map(rule).collect::<Vec<_>>(),
            "keys": self.keys.iter().map(key).collect::<Vec<_>>(),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share to look at")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// A share in words, such as `1.2 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let percent = share(part, whole) * 100.0;
    match percent {
        _ if part == whole => "100 %".to_owned(),
        0.0..0.01 if part > 0 => "less than 0.01 %".to_owned(),
        0.0..1.0 => format!("{percent:.2} %"),
        // not all of them
        99.9..=100.0 => "99.9 %".to_owned(),
        10.0.. => format!("{percent:.0} %"),
        _ => format!("{percent:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(requests: u64, newly_rejected: u64, newly_admitted: u64, by: u64) -> String {
        let first_cause = (by > 0).then(|| ("shop.tenant".to_owned(), by));
        Comparison { requests, newly_rejected, newly_admitted, first_cause, ..Comparison::default() }
            .sentence()
    }

    #[test]
    fn a_sentence_says_what_changes() {
        assert_eq!(sentence(0, 0, 0, 0), "The recording has no requests.");
        assert_eq!(sentence(9, 0, 0, 0), "No request would be decided in another way.");
        assert_eq!(
            sentence(10_000, 120, 0, 113),
            "1.2 % of requests would newly be rejected, 94 % of them by `shop.tenant`."
        );
        assert_eq!(
            sentence(1_000_000, 1, 2_500, 1),
            "less than 0.01 % of requests would newly be rejected, 100 % of them by `shop.tenant`; 0.25 % would newly \
             be admitted."
        );
        assert_eq!(
            sentence(1_000, 0, 999, 0),
            "No request would newly be rejected; 99.9 % would newly be admitted."
        );
    }
}
