//! What a counter under `lease` has to know from one exchange to the next: whether the store has run out of hits.

use crate::limit::{Period, Timestamp};

/// The first wait before a look for hits that others have given back, unless the sync interval is longer.
const FIRST_PROBE: Period = Period::from_millis(250);

#[derive(Debug, Default)]
pub(in super::super) struct Leasing {
    /// Whether the store has run out of hits, and has not had enough for all instances again since.
    pub(in super::super) is_scarce: bool,
    /// The time of the call that ends a pause or, while nothing is left, of the next look for hits given back.
    pub(in super::super) probe_at: Timestamp,
    /// The wait after that. Zero while something is left.
    probe_after: Period,
}

// === impl Leasing ===

impl Leasing {
    /// Returns whether nothing of it has to be known.
    pub(in super::super) fn is_over(&self) -> bool {
        self.probe_after == Period::default() && !self.is_scarce
    }

    /// True once for each pause, shortly before its end: then a lease should be requested.
    pub(in super::super) fn ends_pause(&mut self, denied_until: Timestamp, now: Timestamp) -> bool {
        let is_ending = now >= self.probe_at;
        if is_ending {
            self.probe_at = denied_until;
        }
        is_ending
    }

    /// When the store rejects the next hits, the first look for returned ones comes soon.
    pub(in super::super) fn note_admission(&mut self) {
        self.probe_after = Period::default();
    }

    /// To be called for each rejection. Returns whether it is time to look for hits that others may have given back.
    pub(in super::super) fn looks(&mut self, sync_interval: Period, now: Timestamp) -> bool {
        let is_first = self.probe_after == Period::default();
        if !is_first && now < self.probe_at {
            return false;
        }
        self.probe_after = if is_first { FIRST_PROBE.max(sync_interval) } else { self.probe_after * 2 };
        self.probe_at = now.after(self.probe_after);
        !is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Period = Period::from_millis(100);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_secs(1_000).after(Period::from_millis(ms))
    }

    /// The first rejection may follow the last admission at once.
    #[test]
    fn looks_are_rarer_and_rarer_until_hits_are_admitted() {
        let mut leasing = Leasing::default();
        let looks = |leasing: &mut Leasing, from: u64| -> Vec<u64> {
            (from..from + 8_000).filter(|ms| leasing.looks(INTERVAL, at(*ms))).map(|ms| ms - from).collect()
        };
        assert_eq!(looks(&mut leasing, 0), [250, 750, 1_750, 3_750, 7_750]);
        assert!(!leasing.is_over());
        leasing.note_admission();
        assert!(leasing.is_over());
        assert_eq!(looks(&mut leasing, 8_000)[..2], [250, 750]);
        // no look before the count could have changed
        let mut slow = Leasing::default();
        assert!(!slow.looks(Period::from_secs(1), at(0)) && !slow.looks(Period::from_secs(1), at(999)));
        assert!(slow.looks(Period::from_secs(1), at(1_000)));
    }

    #[test]
    fn a_pause_is_ended_by_one_call() {
        let mut leasing = Leasing { probe_at: at(90), ..Leasing::default() };
        let ends: Vec<u64> = (80..100).filter(|ms| leasing.ends_pause(at(100), at(*ms))).collect();
        assert_eq!(ends, [90]);
    }
}
