//! A comparison as text.

use std::fmt::{self, Write as _};

use super::comparison::{Comparison, KeyChange, OldNew, RuleChange};
use weir_limiter::observe::text::{escaped, shortened};

/// The most rules in a table.
const RULES: usize = 50;

/// The longest name, in characters.
const NAME: usize = 80;

/// Formats the sentence, what cannot be known, and the tables, whose counts are hits.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", escaped(&self.sentence()))?;
        for sentence in &self.unknown {
            writeln!(f, "note: {}", escaped(sentence))?;
        }
        let rules = self.rules.iter().take(RULES).map(|RuleChange { rule, hits }| (rule.clone(), hits));
        f.write_str(&table("rule", rules))?;
        if self.rules.len() > RULES {
            writeln!(f, "and {} rules that change less", self.rules.len() - RULES)?;
        }
        let key = |KeyChange { rule, text, .. }: &KeyChange| format!("{text} ({rule})");
        f.write_str(&table("key", self.keys.iter().map(|change| (key(change), &change.hits))))
    }
}

/// Nothing without rows.
fn table<'a>(what: &str, rows: impl Iterator<Item = (String, &'a OldNew)>) -> String {
    let name = |text: String| shortened(&escaped(&text), NAME).into_owned();
    let rows: Vec<(String, &OldNew)> = rows.map(|(text, hits)| (name(text), hits)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:>12} {:>12} {:>12} {:>12} {:>12}  {what}\n",
        "admitted old", "new", "rejected old", "new", "change"
    );
    for (name, hits) in rows {
        let OldNew { admitted_old, rejected_old, admitted_new, rejected_new } = hits;
        let sign = if rejected_new >= rejected_old { '+' } else { '-' };
        let change = format!("{sign}{}", hits.change());
        // writing to a string cannot fail
        let _ = writeln!(
            text,
            "{admitted_old:>12} {admitted_new:>12} {rejected_old:>12} {rejected_new:>12} {change:>12}  {name}"
        );
    }
    text
}
