//! What the statsd server has been told already.

use std::collections::{BTreeMap, HashMap};

use super::line::{Line, Settles, Tags};
use crate::observe::{
    histogram::{Bucket, Distribution},
    readings::Reading,
};

/// What was sent of every counter and histogram since the start.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    counters: HashMap<String, u64>,
    timings: HashMap<String, Distribution>,
}

impl Ledger {
    /// The lines that bring the server up to `readings`. Counters that did not grow have none, as in the reference.
    pub(super) fn lines(&self, readings: BTreeMap<String, Reading>, tags: &Tags) -> Vec<Line> {
        let mut lines = Vec::new();
        for (name, reading) in readings {
            match reading {
                Reading::Gauge(value) => lines.push(Line::gauge(&name, value, tags)),
                Reading::Counter(value) => {
                    let sent = self.counters.get(&name).copied().unwrap_or_default();
                    if value > sent {
                        lines.push(Line::counter(name, value - sent, tags));
                    }
                }
                Reading::Timing(held) => {
                    let sent = self.timings.get(&name).cloned().unwrap_or_default();
                    for (index, (held, sent)) in held.buckets.iter().zip(&sent.buckets).enumerate() {
                        let by = Bucket {
                            count: held.count.saturating_sub(sent.count),
                            nanos: held.nanos.saturating_sub(sent.nanos),
                        };
                        if by.count > 0 {
                            lines.push(Line::timing(&name, index, by, tags));
                        }
                    }
                }
            }
        }
        lines
    }

    /// Notes that `line` is sent.
    pub(super) fn settle(&mut self, line: &Line) {
        match &line.settles {
            Settles::Nothing => {}
            Settles::Counter { name, by } => match self.counters.get_mut(name) {
                Some(sent) => *sent += by,
                None => {
                    self.counters.insert(name.clone(), *by);
                }
            },
            Settles::Bucket { name, index, by } => {
                let sent = &mut self.timings.entry(name.clone()).or_default().buckets[*index];
                sent.count += by.count;
                sent.nanos += by.nanos;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::{histogram::Histogram, statsd::Dialect};

    fn lines(ledger: &Ledger, counter: u64, timing: &Histogram) -> Vec<Line> {
        let readings = [
            ("c".to_owned(), Reading::Counter(counter)),
            ("g".to_owned(), Reading::Gauge(7)),
            ("t".to_owned(), Reading::Timing(Box::new(timing.get()))),
        ];
        ledger.lines(readings.into(), &Tags::new(Dialect::Plain, &BTreeMap::new()))
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.trim_end()).collect()
    }

    #[test]
    fn what_was_not_sent_is_kept_and_what_was_is_not_sent_again() {
        let mut ledger = Ledger::default();
        let timing = Histogram::default();
        timing.record(Duration::from_millis(2));
        assert_eq!(texts(&lines(&ledger, 3, &timing)), ["c:3|c", "g:7|g", "t:2.000000|ms"]);
        // none of that was sent, and more came
        timing.record(Duration::from_millis(2));
        let sent = lines(&ledger, 5, &timing);
        assert_eq!(texts(&sent), ["c:5|c", "g:7|g", "t:2.000000|ms|@0.5"]);
        for line in &sent {
            ledger.settle(line);
        }
        assert_eq!(texts(&lines(&ledger, 5, &timing)), ["g:7|g"]);
        timing.record(Duration::from_secs(1));
        assert_eq!(texts(&lines(&ledger, 6, &timing)), ["c:1|c", "g:7|g", "t:1000.000000|ms"]);
    }
}
