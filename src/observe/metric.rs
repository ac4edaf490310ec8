//! What other parts contribute to the stats: gauges and counters of weir's own, which the reference has not.

use super::histogram::Distribution;

/// One number under a name of weir's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// With dots, such as `weir.counters.live`. In Prometheus the dots are `_`; a counter ends in `_total`, and times in
    /// `_seconds`.
    pub name: &'static str,
    /// What it tells, in a few words.
    pub help: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What tells it from others of its name. Where there are no labels, the values are further steps of the name.
    pub labels: Vec<(&'static str, String)>,
    /// The number; of times, how many there are.
    pub value: u64,
}

/// How a [`Metric`] behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Times, by how long they were.
    Timing(Box<Distribution>),
}

/// Something that has numbers to tell, whenever it is asked.
pub trait Source: Send + Sync + 'static {
    /// Its numbers now. Always under the same names, each with the same kind.
    fn metrics(&self) -> Vec<Metric>;
}

// === impl Metric ===

impl Metric {
    /// A gauge without labels.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: Kind::Gauge, labels: Vec::new(), value }
    }

    /// A counter without labels.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: Kind::Counter, labels: Vec::new(), value }
    }

    /// Times without labels.
    #[must_use]
    pub fn timing(name: &'static str, help: &'static str, times: Distribution) -> Self {
        Self { name, help, value: times.count(), kind: Kind::Timing(Box::new(times)), labels: Vec::new() }
    }

    /// It, with one more label.
    #[must_use]
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((name, value.into()));
        self
    }
}
