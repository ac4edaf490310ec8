//! What a traced request records about its decision: plain names and times, which the limiter and the store add.

use std::time::Instant;

use parking_lot::Mutex;

/// The most waits that a record keeps apart; further ones extend the last.
const MAX_WAITS: usize = 8;

/// The most bytes of rules in one list of a record; further ones are left out.
const MAX_RULES: usize = 4_096;

/// The record of one request. Requests that are not traced have none.
#[derive(Debug, Default)]
pub struct DecisionRecord(Mutex<RecordState>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedDecision {
    /// The paths of the rules that apply. They contain values of the rule files, but none of the request's.
    pub rules: Vec<String>,
    /// Those of `rules` that reject the request.
    pub rules_over: Vec<String>,
    /// The coordination modes that decided, each once.
    pub modes: Vec<&'static str>,
    /// The hits, summed over `rules`; below 0 if more are given back than taken.
    pub hits: i64,
    /// Whether a decision was made without the shared store, because it did not reply.
    pub fallback: bool,
    /// Whether one of `rules_over` rejects although the shared store did not reply.
    pub rejected_by_fallback: bool,
    /// The times during which the request waited for the shared store, in their order and without overlap.
    pub waits: Vec<StoreWait>,
}

/// A time during which a request waited for the shared store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreWait {
    pub begun: Instant,
    pub ended: Instant,
    /// The commands that it sent. None if it waited for a reply that another request had asked for.
    pub commands: u32,
    /// Why a call failed, if one did.
    pub error: Option<&'static str>,
}

#[derive(Debug, Default)]
struct RecordState {
    recorded: RecordedDecision,
    /// Commands that were sent since the last wait ended.
    commands: u32,
}

// === impl DecisionRecord ===

impl DecisionRecord {
    pub fn add_rule(&self, path: String, hits: i64, over: bool) {
        let recorded = &mut self.0.lock().recorded;
        recorded.hits = recorded.hits.saturating_add(hits);
        if over {
            push_bounded(&mut recorded.rules_over, path.clone());
        }
        push_bounded(&mut recorded.rules, path);
    }

    pub fn add_mode(&self, mode: &'static str) {
        let modes = &mut self.0.lock().recorded.modes;
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }

    pub fn set_fallback(&self) {
        self.0.lock().recorded.fallback = true;
    }

    pub fn set_rejected_by_fallback(&self) {
        self.0.lock().recorded.rejected_by_fallback = true;
    }

    /// Adds commands to the wait that ends next.
    pub fn add_commands(&self, commands: u32) {
        let state = &mut *self.0.lock();
        state.commands = state.commands.saturating_add(commands);
    }

    /// Records that the request has waited for the shared store since `begun`. Waits that overlap become one.
    pub fn add_wait(&self, begun: Instant, error: Option<&'static str>) {
        let state = &mut *self.0.lock();
        let wait = StoreWait { begun, ended: Instant::now(), commands: state.commands, error };
        state.commands = 0;
        let waits = &mut state.recorded.waits;
        let is_full = waits.len() >= MAX_WAITS;
        match waits.last_mut().filter(|last| is_full || begun <= last.ended) {
            Some(last) => last.extend(&wait),
            None => waits.push(wait),
        }
    }

    pub fn take(&self) -> RecordedDecision {
        std::mem::take(&mut self.0.lock().recorded)
    }
}

fn push_bounded(rules: &mut Vec<String>, rule: String) {
    let size: usize = rules.iter().map(String::len).sum();
    if size + rule.len() <= MAX_RULES {
        rules.push(rule);
    }
}

// === impl StoreWait ===

impl StoreWait {
    fn extend(&mut self, other: &Self) {
        self.begun = self.begun.min(other.begun);
        self.ended = self.ended.max(other.ended);
        self.commands = self.commands.saturating_add(other.commands);
        self.error = self.error.or(other.error);
    }
}

#[cfg(test)]
mod tests {
    use std::{thread::sleep, time::Duration};

    use super::*;

    #[test]
    fn waits_that_overlap_are_one_and_others_stay_apart() {
        let record = DecisionRecord::default();
        let begun = Instant::now();
        record.add_commands(1);
        record.add_commands(2);
        record.add_wait(begun, None);
        record.add_wait(begun, Some("late"));
        sleep(Duration::from_millis(1));
        let second = Instant::now();
        record.add_commands(1);
        record.add_wait(second, None);
        let waits = record.take().waits;
        let seen: Vec<_> = waits.iter().map(|wait| (wait.begun, wait.commands, wait.error)).collect();
        assert_eq!(seen, [(begun, 3, Some("late")), (second, 1, None)]);
        assert!(waits[0].ended < second);
    }

    #[test]
    fn a_record_is_bounded() {
        let record = DecisionRecord::default();
        for _ in 0..10_000 {
            record.add_rule("x".repeat(100), 1, true);
            record.add_mode("strict");
            sleep(Duration::from_nanos(1));
            record.add_commands(1);
            record.add_wait(Instant::now(), None);
        }
        let recorded = record.take();
        assert_eq!((recorded.rules.len(), recorded.rules_over.len(), recorded.hits), (40, 40, 10_000));
        assert_eq!(recorded.modes, ["strict"]);
        assert!(recorded.waits.len() <= MAX_WAITS);
        assert_eq!(recorded.waits.iter().map(|wait| wait.commands).sum::<u32>(), 10_000);
    }
}
