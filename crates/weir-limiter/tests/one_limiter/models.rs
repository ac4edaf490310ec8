//! The models that agree with all answers so far. There are several if a request has waited: it may have been decided
//! at any instant of its wait.

use std::collections::BTreeMap;

use weir_limit::Timestamp;

use crate::model::{Answer, Check, Model};

/// The most models of one counter.
const MOST: usize = 1_024;

/// The models of each counter, by its entries.
#[derive(Debug, Default)]
pub(crate) struct Models {
    by_entries: BTreeMap<String, Vec<Model>>,
    /// Whether there were more than [`MOST`], so that the right one may be missing.
    pub(crate) are_too_many: bool,
}

// === impl Models ===

impl Models {
    /// Has the models answer `checks` at each of `instants`. Keeps those that answer `got`. Returns that answer, or if
    /// none agrees the first model's at the first instant.
    pub(crate) fn follow(
        &mut self,
        instants: &[Timestamp],
        checks: &[Check],
        got: &[Answer],
        answer: impl Fn(&mut Model, Timestamp) -> Vec<Answer>,
    ) -> Vec<Answer> {
        let before = self.of(checks);
        self.are_too_many |= before.len() == MOST;
        let mut kept: Vec<Model> = Vec::new();
        for (model, now) in instants.iter().flat_map(|now| before.iter().map(move |model| (model, *now))) {
            let mut model = model.clone();
            if answer(&mut model, now) == got && !kept.contains(&model) {
                kept.push(model);
                if kept.len() == MOST {
                    self.are_too_many = true;
                    break;
                }
            }
        }
        if kept.is_empty() {
            return answer(&mut before[0].clone(), instants[0]);
        }
        for check in checks {
            let mut own: Vec<Model> = Vec::new();
            for model in kept.iter().map(|model| model.only(&check.name)) {
                if !own.contains(&model) {
                    own.push(model);
                }
            }
            self.by_entries.insert(check.name.clone(), own);
        }
        got.to_vec()
    }

    /// Returns whether the documentation leaves open what the answer to `checks` is at `now`.
    pub(crate) fn is_open(&self, checks: &[Check], now: Timestamp) -> bool {
        self.of(checks).iter().any(|model| model.is_open(checks, now))
    }

    /// Returns the models of the counters of all `checks` together, at least one.
    fn of(&self, checks: &[Check]) -> Vec<Model> {
        let mut all = vec![Model::default()];
        for own in checks.iter().filter_map(|check| self.by_entries.get(&check.name)) {
            all = all.iter().flat_map(|model| own.iter().map(|own| model.with(own))).take(MOST).collect();
        }
        all
    }
}
