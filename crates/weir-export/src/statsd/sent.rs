//! The totals that were already sent, from which the next lines' deltas are computed.

use std::collections::{BTreeMap, HashMap};

use super::line::{Delta, StatLine, StatNames};
use crate::snapshot::StatValue;
use weir_observe::histogram::Bucket;

#[derive(Debug, Default)]
pub(super) struct SentTotals {
    counters: HashMap<String, u64>,
    /// By name and the bucket's place.
    timings: HashMap<(String, usize), Bucket>,
}

impl SentTotals {
    /// Like envoyproxy/ratelimit, sends nothing for a counter that did not grow.
    pub(super) fn lines(&self, current: BTreeMap<String, StatValue>, names: &StatNames) -> Vec<StatLine> {
        let mut lines = Vec::new();
        for (name, value) in current {
            match value {
                StatValue::Gauge(value) => lines.push(StatLine::gauge(&name, value, names)),
                StatValue::Counter(value) => {
                    let sent = self.counters.get(&name).copied().unwrap_or_default();
                    if value != sent {
                        // it began again at zero if its name was forgotten, such as a member of a pool, and came back
                        let by = value.checked_sub(sent).unwrap_or(value);
                        lines.push(StatLine::counter(name, by, value, names));
                    }
                }
                StatValue::Timing(times) => {
                    for (index, now) in times.buckets.iter().enumerate() {
                        let sent = self.timings.get(&(name.clone(), index)).copied().unwrap_or_default();
                        let by = now.minus(sent);
                        if by.count > 0 {
                            lines.push(StatLine::timing(&name, index, by, names));
                        }
                    }
                }
            }
        }
        lines
    }

    /// Counters begin again at zero if they come back.
    pub(super) fn forget_missing(&mut self, current: &BTreeMap<String, StatValue>) {
        self.counters.retain(|name, _| current.contains_key(name));
    }

    pub(super) fn mark_sent(&mut self, line: &StatLine) {
        match &line.delta {
            None => {}
            Some(Delta::Counter { name, total }) => {
                self.counters.insert(name.clone(), *total);
            }
            Some(Delta::Bucket { name, index, by }) => {
                let sent = self.timings.entry((name.clone(), *index)).or_default();
                *sent = sent.plus(*by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::statsd::settings::Dialect;
    use weir_observe::histogram::Histogram;

    fn lines(sent: &SentTotals, counter: u64, timing: &Histogram) -> Vec<StatLine> {
        let current = [
            ("c".to_owned(), StatValue::Counter(counter)),
            ("g".to_owned(), StatValue::Gauge(7)),
            ("t".to_owned(), StatValue::Timing(Box::new(timing.get()))),
        ];
        sent.lines(current.into(), &StatNames::new(Dialect::Plain, &BTreeMap::new(), Vec::new()))
    }

    fn texts(lines: &[StatLine]) -> Vec<&str> {
        lines.iter().map(|line| line.text.trim_end()).collect()
    }

    /// Its name was forgotten between two flushes, and came back. A request may have 2^64 - 1 hits.
    #[test]
    fn a_total_that_has_begun_again_is_sent() {
        let (mut totals, timing) = (SentTotals::default(), Histogram::default());
        for (total, by) in [(u64::MAX - 1, "c:18446744073709551614|c"), (3, "c:3|c"), (4, "c:1|c")] {
            let sent = lines(&totals, total, &timing);
            assert_eq!(texts(&sent)[0], by);
            for line in &sent {
                totals.mark_sent(line);
            }
        }
    }

    #[test]
    fn unsent_deltas_are_kept_and_sent_ones_are_not_repeated() {
        let mut totals = SentTotals::default();
        let timing = Histogram::default();
        timing.record(Duration::from_millis(2));
        assert_eq!(texts(&lines(&totals, 3, &timing)), ["c:3|c", "g:7|g", "t:2.000000|ms"]);
        // none of that was sent, and the stats grew
        timing.record(Duration::from_millis(2));
        let sent = lines(&totals, 5, &timing);
        assert_eq!(texts(&sent), ["c:5|c", "g:7|g", "t:2.000000|ms|@0.5"]);
        for line in &sent {
            totals.mark_sent(line);
        }
        assert_eq!(texts(&lines(&totals, 5, &timing)), ["g:7|g"]);
        timing.record(Duration::from_secs(1));
        assert_eq!(texts(&lines(&totals, 6, &timing)), ["c:1|c", "g:7|g", "t:1000.000000|ms"]);
    }

    #[test]
    fn a_forgotten_name_that_comes_back_is_sent_from_zero() {
        let stats = |names: &[(&str, u64)]| -> BTreeMap<String, StatValue> {
            let stat = |(name, total): &(&str, u64)| ((*name).to_owned(), StatValue::Counter(*total));
            names.iter().map(stat).collect()
        };
        let (mut totals, names) =
            (SentTotals::default(), StatNames::new(Dialect::Plain, &BTreeMap::new(), Vec::new()));
        let mut flush = |current: BTreeMap<String, StatValue>| {
            totals.forget_missing(&current);
            let lines = totals.lines(current, &names);
            for line in &lines {
                totals.mark_sent(line);
            }
            (
                lines.iter().map(|line| line.text.trim_end().to_owned()).collect::<Vec<_>>(),
                totals.counters.len(),
            )
        };
        flush(stats(&[("a.rule", 3)]));
        for name in ["a.domain_not_found", "weir.pool.admitted.rule.member", "a.rule"] {
            let line = |total: u64| vec![format!("{name}:{total}|c")];
            flush(stats(&[("rule", 1)]));
            assert_eq!(flush(stats(&[(name, 7), ("rule", 1)])).0, line(7));
            // it went and came back between two flushes
            assert_eq!(flush(stats(&[(name, 2), ("rule", 1)])).0, line(2));
            assert_eq!(flush(stats(&[("rule", 1)])), (Vec::new(), 1));
            assert_eq!(flush(stats(&[(name, 1), ("rule", 1)])).0, line(1));
        }
    }
}
