//! Changes: who did what, when. Each is also a line of the log.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};
use weir_limit::Timestamp;
use weir_observe::text::shortened;

use super::time;

/// The changes of each kind that are kept.
const MOST: usize = 1_000;

/// The longest text of a change, in characters.
const MAX_TEXT: usize = 200;

/// The errors of rejected rules that are kept.
const MOST_ERRORS: usize = 100;

/// The last changes of this process.
#[derive(Debug, Default)]
pub struct AuditTrail {
    changes: [Mutex<VecDeque<AuditedChange>>; ChangeKind::ALL.len()],
    rule_errors: Mutex<Vec<RuleError>>,
}

named! {
    /// What was changed.
    pub enum ChangeKind {
        Rules = "rules",
        Reset = "reset",
        Recording = "recording",
        Login = "login",
    }
}

#[derive(Clone, Debug)]
pub struct AuditedChange {
    pub at: Timestamp,
    pub kind: ChangeKind,
    /// A token's name, an address, or `file`.
    pub who: Arc<str>,
    /// A sentence.
    pub what: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// Why rules are not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    pub file: String,
    pub line: u32,
    pub message: String,
}

// === impl AuditTrail ===

impl AuditTrail {
    /// Keeps `change` and writes it to the log, which is never sampled.
    pub fn add(&self, change: AuditedChange) {
        let change = change.shortened();
        tracing::info!(
            target: "weir_audit",
            kind = change.kind.name(),
            who = %change.who,
            before = change.before,
            after = change.after,
            "{}",
            change.what
        );
        let mut changes = self.changes[change.kind as usize].lock();
        if changes.len() >= MOST {
            changes.pop_front();
        }
        changes.push_back(change);
    }

    /// Says why the newest rules are not in force; nothing if they are.
    pub fn set_rule_errors(&self, mut errors: Vec<RuleError>) {
        errors.truncate(MOST_ERRORS);
        *self.rule_errors.lock() = errors;
    }

    pub(super) fn rule_errors(&self) -> Vec<RuleError> {
        self.rule_errors.lock().clone()
    }

    /// Returns the changes of `kind`, or of all kinds, the newest first.
    pub(super) fn list(&self, kind: Option<ChangeKind>) -> Vec<AuditedChange> {
        let kinds = ChangeKind::ALL.iter().filter(|of| kind.is_none_or(|kind| kind == **of));
        let mut all: Vec<AuditedChange> = kinds
            .flat_map(|kind| self.changes[*kind as usize].lock().iter().cloned().collect::<Vec<_>>())
            .collect();
        all.reverse();
        all.sort_by_key(|change| std::cmp::Reverse(change.at));
        all
    }
}

// === impl ChangeKind ===

impl ChangeKind {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|kind| kind.name() == name).copied()
    }
}

// === impl AuditedChange ===

impl AuditedChange {
    fn shortened(self) -> Self {
        let short = |text: String| shortened(&text, MAX_TEXT).into_owned();
        Self {
            what: short(self.what),
            before: self.before.map(short),
            after: self.after.map(short),
            ..self
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "at": time::text(self.at),
            "kind": self.kind.name(),
            "who": &*self.who,
            "what": self.what,
            "before": self.before,
            "after": self.after,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: ChangeKind, second: u64) -> AuditedChange {
        let what = format!("{second} {}", "x".repeat(300));
        AuditedChange {
            at: Timestamp::from_secs(second),
            kind,
            who: "ops".into(),
            what,
            before: None,
            after: None,
        }
    }

    #[test]
    fn the_last_thousand_of_each_kind_are_kept() {
        let trail = AuditTrail::default();
        trail.add(change(ChangeKind::Rules, 3));
        for second in 0..1_500 {
            trail.add(change(ChangeKind::Reset, second));
        }
        let all = trail.list(None);
        assert_eq!(
            (all.len(), all[0].at, all.last().map(|last| last.kind)),
            (1_001, Timestamp::from_secs(1_499), Some(ChangeKind::Rules))
        );
        assert_eq!(trail.list(Some(ChangeKind::Rules)).len(), 1);
        assert_eq!(all[0].what.chars().count(), 201);
    }
}
