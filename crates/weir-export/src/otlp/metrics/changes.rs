//! What series have counted since the last export, for delta temporality.

use std::{collections::HashMap, sync::Arc};

use crate::prometheus::{Buckets, Labels, Value};

pub(super) type SeriesKey = (String, Arc<Labels>);

/// The values of the last export that the collector has taken, by their series.
#[derive(Debug, Default)]
pub(super) struct Changes {
    exported: HashMap<SeriesKey, Exported>,
    export: u64,
    /// When the last export was read, in nanoseconds since the epoch; none before the first.
    read_at: Option<u64>,
}

#[derive(Debug)]
struct Exported {
    value: Value,
    /// When it was read, in nanoseconds since the epoch.
    at: u64,
    /// The last export that had the series.
    export: u64,
}

#[derive(Debug)]
pub(super) struct SeriesReading {
    pub(super) key: SeriesKey,
    pub(super) value: Value,
}

// === impl Changes ===

impl Changes {
    /// What was counted since the collector got the last value of the series, and when that was; none for the start. A
    /// value below the last one began at 0 again; a series that the last export lacked began after it.
    pub(super) fn since(&mut self, key: &SeriesKey, value: &Value) -> (Value, Option<u64>) {
        let Some(last) = self.exported.get_mut(key) else { return (value.clone(), self.read_at) };
        last.export = self.export;
        (minus(value, &last.value).unwrap_or_else(|| value.clone()), Some(last.at))
    }

    pub(super) fn exported(&mut self, readings: Vec<SeriesReading>, at: u64) {
        let export = self.export;
        for SeriesReading { key, value } in readings {
            self.exported.insert(key, Exported { value, at, export });
        }
    }

    pub(super) fn end_export(&mut self, at: u64) {
        self.exported.retain(|_, exported| exported.export == self.export);
        self.export += 1;
        self.read_at = Some(at);
    }
}

fn minus(value: &Value, last: &Value) -> Option<Value> {
    match (value, last) {
        (Value::Int(value), Value::Int(last)) => value.checked_sub(*last).map(Value::Int),
        (Value::Double(value), Value::Double(last)) => (value >= last).then(|| Value::Double(value - last)),
        (Value::Histogram(value), Value::Histogram(last)) => {
            // the bounds of a metric never change
            let buckets = value.at_most.iter().zip(&last.at_most);
            let at_most =
                buckets.map(|((bound, count), (_, last))| Some((*bound, count.checked_sub(*last)?)));
            Some(Value::Histogram(Box::new(Buckets {
                at_most: at_most.collect::<Option<_>>()?,
                sum: value.sum - last.sum,
                count: value.count.checked_sub(last.count)?,
            })))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> SeriesKey {
        (name.to_owned(), Arc::default())
    }

    fn histogram(below: u64, count: u64, sum: f64) -> Value {
        Value::Histogram(Box::new(Buckets { at_most: vec![(1.0, below)], sum, count }))
    }

    fn export(changes: &mut Changes, values: &[(&str, Value)], at: u64) -> Vec<(Value, Option<u64>)> {
        let since = values.iter().map(|(name, value)| changes.since(&key(name), value)).collect();
        let reading = |(name, value): &(&str, Value)| SeriesReading { key: key(name), value: value.clone() };
        changes.exported(values.iter().map(reading).collect(), at);
        changes.end_export(at);
        since
    }

    #[test]
    fn a_change_is_the_difference_from_the_last_export() {
        let mut changes = Changes::default();
        let first = [("a", Value::Int(5)), ("b", Value::Double(0.5)), ("h", histogram(1, 3, 3.0))];
        assert_eq!(export(&mut changes, &first, 10), first.clone().map(|(_, value)| (value, None)));
        let second = [("a", Value::Int(7)), ("b", Value::Double(2.0)), ("h", histogram(1, 5, 8.5))];
        let expected = [Value::Int(2), Value::Double(1.5), histogram(0, 2, 5.5)];
        assert_eq!(export(&mut changes, &second, 20), expected.map(|value| (value, Some(10))));
        // begun again
        let third = [("a", Value::Int(1)), ("b", Value::Double(1.0)), ("h", histogram(1, 1, 0.5))];
        let expected = third.clone().map(|(_, value)| (value, Some(20)));
        assert_eq!(export(&mut changes, &third, 30), expected);
    }

    #[test]
    fn an_export_that_failed_is_part_of_the_next_one() {
        let mut changes = Changes::default();
        export(&mut changes, &[("a", Value::Int(5))], 10);
        assert_eq!(changes.since(&key("a"), &Value::Int(7)), (Value::Int(2), Some(10)));
        assert_eq!(changes.since(&key("a"), &Value::Int(9)), (Value::Int(4), Some(10)));
    }

    #[test]
    fn series_that_have_gone_are_forgotten() {
        let mut changes = Changes::default();
        export(&mut changes, &[("a", Value::Int(5)), ("b", Value::Int(1))], 10);
        export(&mut changes, &[("b", Value::Int(1))], 20);
        assert_eq!(changes.exported.len(), 1);
        // it began after the last export, which did not have it
        assert_eq!(changes.since(&key("a"), &Value::Int(6)), (Value::Int(6), Some(20)));
    }
}
