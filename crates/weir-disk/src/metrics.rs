use weir_observe::{Counter, Gauge, Metric, histogram::Histogram};

#[derive(Debug, Default)]
pub(super) struct DiskMetrics {
    pub(super) records_written: Counter,
    /// The times that batches took to write, and sync if they are synced.
    pub(super) writes: Histogram,
    pub(super) failures: Counter,
    pub(super) reads: Counter,
    pub(super) read_failures: Counter,
    pub(super) fallback: Counter,
    /// Changed counters that are not written yet, as of the last batch.
    pub(super) pending: Gauge,
    pub(super) bytes: Gauge,
    pub(super) compactions: Counter,
    /// Whether writes succeed: 1 or 0.
    pub(super) available: Gauge,
    pub(super) damaged: Counter,
}

impl DiskMetrics {
    /// `removed` are expired records that were removed; `evicted` are counters that left memory, which the disk has.
    pub(super) fn metrics(&self, records: u64, expired: u64, removed: u64, evicted: u64) -> Vec<Metric> {
        let counter = |name, help, counter: &Counter| Metric::counter(name, help, counter.get());
        vec![
            Metric::gauge("weir.disk.available", "Whether writes to the disk succeed.", self.available.get()),
            Metric::gauge("weir.disk.bytes", "Bytes of the data directory.", self.bytes.get()),
            Metric::gauge("weir.disk.records", "Counters on disk, roughly.", records),
            Metric::gauge("weir.disk.expired", "Counters on disk that have expired, roughly.", expired),
            Metric::gauge(
                "weir.disk.pending",
                "Changed counters that the last write left in memory.",
                self.pending.get(),
            ),
            Metric::counter("weir.disk.removed", "Expired counters removed from the disk.", removed),
            Metric::counter("weir.disk.evicted", "Counters that left memory, which the disk has.", evicted),
            counter("weir.disk.written", "Counters written to the disk.", &self.records_written),
            Metric::timing("weir.disk.write", "Times of writes, with their sync.", self.writes.get()),
            counter("weir.disk.write_failures", "Writes that failed.", &self.failures),
            counter("weir.disk.reads", "Counters read from the disk.", &self.reads),
            counter("weir.disk.read_failures", "Reads that failed.", &self.read_failures),
            counter(
                "weir.disk.fallback",
                "Decisions made by on_store_failure, because the disk did not answer in time.",
                &self.fallback,
            ),
            counter("weir.disk.compactions", "Compactions of the whole data.", &self.compactions),
            counter("weir.disk.damaged", "Damaged files found.", &self.damaged),
        ]
    }
}
