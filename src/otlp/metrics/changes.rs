//! What series have counted since the last export, for delta temporality.

use std::collections::HashMap;

use super::points::{Buckets, Number, Value};

/// The values of the last export that the collector has taken, by the texts that name their series.
#[derive(Debug, Default)]
pub(super) struct Changes {
    exported: HashMap<String, Exported>,
    /// The number of the current export.
    export: u64,
    /// When the page of the last export was read, in nanoseconds since the epoch; none before the first.
    read_at: Option<u64>,
}

/// A value that the collector has.
#[derive(Debug)]
struct Exported {
    value: Value,
    /// When it was read, in nanoseconds since the epoch.
    at: u64,
    /// The last export whose page had the series.
    export: u64,
}

/// The value of a series, to be kept once the collector has it.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) key: String,
    pub(super) value: Value,
}

// === impl Changes ===

impl Changes {
    /// Returns what `value` has counted since the collector got the last value of its series, and since when that is;
    /// none if that is since the start. A value that is lower than the last one began at 0 again, and a series that the
    /// last page did not have began after it.
    pub(super) fn since(&mut self, key: &str, value: &Value) -> (Value, Option<u64>) {
        let Some(last) = self.exported.get_mut(key) else { return (value.clone(), self.read_at) };
        last.export = self.export;
        (minus(value, &last.value).unwrap_or_else(|| value.clone()), Some(last.at))
    }

    /// Keeps values that the collector has taken, which were read at `at`.
    pub(super) fn exported(&mut self, readings: Vec<Reading>, at: u64) {
        let export = self.export;
        for Reading { key, value } in readings {
            self.exported.insert(key, Exported { value, at, export });
        }
    }

    /// Ends an export of all series, whose page was read at `at`, and forgets those that the page did not have.
    pub(super) fn end_export(&mut self, at: u64) {
        self.exported.retain(|_, exported| exported.export == self.export);
        self.export += 1;
        self.read_at = Some(at);
    }
}

/// Returns `value` less `last`, or none if it is lower, or another kind of value.
fn minus(value: &Value, last: &Value) -> Option<Value> {
    match (value, last) {
        (Value::Number(Number::Int(value)), Value::Number(Number::Int(last))) => {
            value.checked_sub(*last).filter(|more| *more >= 0).map(|more| Value::Number(Number::Int(more)))
        }
        // a fraction may become a whole number
        (Value::Number(value), Value::Number(last)) => {
            let more = value.as_f64() - last.as_f64();
            (more >= 0.0).then_some(Value::Number(Number::Double(more)))
        }
        (Value::Histogram(value), Value::Histogram(last)) if value.bounds == last.bounds => {
            let counts = value.counts.iter().zip(&last.counts).map(|(value, last)| value.checked_sub(*last));
            Some(Value::Histogram(Buckets {
                bounds: value.bounds.clone(),
                counts: counts.collect::<Option<_>>()?,
                sum: value.sum - last.sum,
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(value: i64) -> Value {
        Value::Number(Number::Int(value))
    }

    fn histogram(counts: &[u64], sum: f64) -> Value {
        Value::Histogram(Buckets { bounds: vec![1.0], counts: counts.to_vec(), sum })
    }

    fn export(changes: &mut Changes, values: &[(&str, Value)], at: u64) -> Vec<(Value, Option<u64>)> {
        let since = values.iter().map(|(key, value)| changes.since(key, value)).collect();
        let reading = |(key, value): &(&str, Value)| Reading { key: (*key).into(), value: value.clone() };
        changes.exported(values.iter().map(reading).collect(), at);
        changes.end_export(at);
        since
    }

    #[test]
    fn a_change_is_the_difference_from_the_last_export() {
        let mut changes = Changes::default();
        let first = [("a", int(5)), ("h", histogram(&[1, 2], 3.0))];
        assert_eq!(export(&mut changes, &first, 10), first.clone().map(|(_, value)| (value, None)));
        let second = [("a", int(7)), ("h", histogram(&[1, 4], 8.5))];
        let expected = [(int(2), Some(10)), (histogram(&[0, 2], 5.5), Some(10))];
        assert_eq!(export(&mut changes, &second, 20), expected);
        // begun again
        let third = [("a", int(1)), ("h", histogram(&[1, 0], 0.5))];
        let expected = third.clone().map(|(_, value)| (value, Some(20)));
        assert_eq!(export(&mut changes, &third, 30), expected);
    }

    #[test]
    fn whole_numbers_and_fractions_are_subtracted() {
        let (mut changes, double) = (Changes::default(), |value| Value::Number(Number::Double(value)));
        export(&mut changes, &[("a", int(1))], 10);
        assert_eq!(export(&mut changes, &[("a", double(1.5))], 20), [(double(0.5), Some(10))]);
        assert_eq!(export(&mut changes, &[("a", int(2))], 30), [(double(0.5), Some(20))]);
        assert_eq!(export(&mut changes, &[("a", double(0.5))], 40), [(double(0.5), Some(30))]);
    }

    #[test]
    fn an_export_that_failed_is_part_of_the_next_one() {
        let mut changes = Changes::default();
        export(&mut changes, &[("a", int(5))], 10);
        assert_eq!(changes.since("a", &int(7)), (int(2), Some(10)));
        assert_eq!(changes.since("a", &int(9)), (int(4), Some(10)));
    }

    #[test]
    fn series_that_have_gone_are_forgotten() {
        let mut changes = Changes::default();
        export(&mut changes, &[("a", int(5)), ("b", int(1))], 10);
        export(&mut changes, &[("b", int(1))], 20);
        assert_eq!(changes.exported.len(), 1);
        // it began after the last page, which did not have it
        assert_eq!(changes.since("a", &int(6)), (int(6), Some(20)));
    }
}
