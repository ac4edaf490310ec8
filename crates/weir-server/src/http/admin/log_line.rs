//! Reads a line of the log of rejections, in text or JSON.

use serde_json::{Value, json};
use weir_limit::{CompiledRule, Entry};

use super::{answer::count, problem::Problem};

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedRejection {
    at: Option<String>,
    pub(super) domain: String,
    pub(super) rule: String,
    pub(super) descriptor: String,
    pub(super) hits: u64,
    limit: String,
    retry_after: String,
    mode: String,
    reason: String,
}

const FORM: &str = "The line is none of the log of rejections; such a line has `rejected domain=… rule=… descriptor=…`, or \
                    these fields in JSON.";

// === impl LoggedRejection ===

impl LoggedRejection {
    pub(super) fn parse(line: &str) -> Result<Self, Problem> {
        let line = line.trim();
        let read = if line.starts_with('{') { Self::of_json(line) } else { Self::of_text(line) };
        read.ok_or_else(|| Problem::malformed(FORM))
    }

    fn of_json(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| match line.get(name)? {
            Value::String(text) => Some(text.clone()),
            value => Some(value.to_string()),
        };
        Some(Self {
            at: text("@timestamp"),
            domain: text("domain")?,
            rule: text("rule")?,
            descriptor: text("descriptor")?,
            hits: text("hits")?.parse().ok()?,
            limit: text("limit").unwrap_or_default(),
            retry_after: text("retry_after").unwrap_or_default(),
            mode: text("mode").unwrap_or_default(),
            reason: text("reason").unwrap_or_default(),
        })
    }

    /// Fields come in their order. Values of callers, which may have anything, end at the last name of the next field.
    fn of_text(line: &str) -> Option<Self> {
        let (before, rest) = line.split_once("rejected domain=")?;
        let (domain, rest) = rest.split_once(" rule=")?;
        let (rule, rest) = rest.split_once(" descriptor=")?;
        let (rest, reason) = rest.rsplit_once(" reason=")?;
        let (rest, mode) = rest.rsplit_once(" mode=")?;
        let (rest, retry_after) = rest.rsplit_once(" retry_after=")?;
        let (rest, limit) = rest.rsplit_once(" limit=")?;
        let (descriptor, hits) = rest.rsplit_once(" hits=")?;
        Some(Self {
            at: before
                .split_whitespace()
                .next()
                .filter(|word| word.starts_with(|char: char| char.is_ascii_digit()))
                .map(str::to_owned),
            domain: domain.to_owned(),
            rule: rule.to_owned(),
            descriptor: descriptor.to_owned(),
            hits: hits.parse().ok()?,
            limit: limit.to_owned(),
            retry_after: retry_after.to_owned(),
            mode: mode.to_owned(),
            reason: reason.trim().to_owned(),
        })
    }

    /// The number of the counter, if the values are masked.
    pub(super) fn number(&self) -> Option<u32> {
        let (_, number) = self.descriptor.rsplit_once(" #")?;
        (number.len() == 8).then(|| u32::from_str_radix(number, 16).ok())?
    }

    /// The entries, whose keys are those of `rule`. None if the line does not have them all.
    pub(super) fn entries(&self, rule: &CompiledRule) -> Option<Vec<(String, String)>> {
        if self.descriptor.ends_with('…') {
            return None;
        }
        let mut entries = Vec::new();
        let mut rest = self.descriptor.strip_prefix(&*rule.levels.first()?.key)?.strip_prefix('=')?;
        for levels in rule.levels.windows(2) {
            let separator = format!(",{}=", levels[1].key);
            let (value, after) = rest.split_once(&separator)?;
            entries.push((levels[0].key.to_string(), value.to_owned()));
            rest = after;
        }
        entries.push((rule.levels.last()?.key.to_string(), rest.to_owned()));
        Some(entries)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "at": self.at,
            "rule": self.rule,
            "descriptor": self.descriptor,
            "hits": count(self.hits),
            "limit": self.limit,
            "retry_after": self.retry_after,
            "mode": self.mode,
            "reason": self.reason,
        })
    }
}

pub(super) fn borrowed(entries: &[(String, String)]) -> impl Iterator<Item = Entry<'_>> {
    entries.iter().map(|(key, value)| Entry { key, value })
}

#[cfg(test)]
mod tests {
    use weir_limit::{Domain, KeyHasher, Limit, Rule, RuleNode, RuleSet, Unit, Values};

    use super::*;

    fn rules() -> RuleSet {
        let limit = || Some(Rule::new(Limit::fixed_window(1, Unit::Minute.period())));
        let path = RuleNode { rule: limit(), ..RuleNode::new("path", Values::Any) };
        let tenant = RuleNode { rule: limit(), children: vec![path], ..RuleNode::new("tenant", Values::Any) };
        RuleSet::new(&[Domain::new("shop", vec![tenant])], KeyHasher::random())
    }

    fn rule(path: &str) -> impl Fn(&RuleSet) -> Option<usize> {
        let path = path.to_owned();
        move |rules| rules.rules().iter().position(|rule| rule.path.to_string() == path)
    }

    #[test]
    fn a_line_has_its_entries_whatever_their_values() {
        let line = "2026-11-30T09:00:00.1Z  WARN weir_server::rejections: rejected domain=shop rule=shop.tenant.path \
                    descriptor=tenant=a,b hits=9,path=/x hits=1 limit=100 requests per 1m retry_after=12.3s mode=lease \
                    reason=limit";
        let read = LoggedRejection::parse(line).expect("a line");
        assert_eq!((&*read.domain, read.hits, &*read.reason), ("shop", 1, "limit"));
        assert_eq!(read.at.as_deref(), Some("2026-11-30T09:00:00.1Z"));
        let rules = rules();
        let of = |path: &str| &rules.rules()[rule(path)(&rules).expect("a rule")];
        let entries = read.entries(of("shop.tenant.path")).expect("entries");
        assert_eq!(entries, [("tenant".into(), "a,b hits=9".into()), ("path".into(), "/x".into())]);
        let json = r#"{"@message":"rejected","@timestamp":"2026","level":"warning","domain":"shop","rule":"shop.tenant","descriptor":"tenant=*** #5d3a90c1","hits":2,"limit":"1 request per 1m","retry_after":"1.0s","mode":"local","reason":"limit"}"#;
        let read = LoggedRejection::parse(json).expect("a line");
        assert_eq!((read.number(), read.hits), (Some(0x5d3a_90c1), 2));
        for wrong in ["", "hello", "{}", "rejected domain=a rule=b", "{\"domain\": 1"] {
            assert!(LoggedRejection::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_that_was_cut_has_no_entries() {
        let line = "rejected domain=shop rule=shop.tenant descriptor=tenant=aaaa… hits=1 limit=l retry_after=r mode=m reason=x";
        let (read, rules) = (LoggedRejection::parse(line).expect("a line"), rules());
        let of_tenant = &rules.rules()[rule("shop.tenant")(&rules).expect("a rule")];
        assert_eq!((read.entries(of_tenant), read.number()), (None, None));
    }
}
