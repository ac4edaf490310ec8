//! The loop that sends the stats.
//!
//! Requests never touch it: it reads the counters, sends their growth since the last successful send, and records what
//! was sent. While the server is unreachable the deltas accumulate, and are sent when it is back.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{client::StatsdClient, line::StatNames, sent::SentTotals, settings::StatsdSettings};
use crate::snapshot::{StatValue, snapshot};
use weir_observe::stats::Stats;

const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends `stats` every [`StatsdSettings::interval`] until `stop`, then flushes once more.
pub async fn run(settings: StatsdSettings, stats: Arc<Stats>, stop: impl Future<Output = ()>) {
    let mut stop = pin!(stop);
    let mut ticks = interval(settings.interval.max(Duration::from_millis(1)));
    // after a server that hung, one flush sends what the missed ones would have sent
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut exporter = StatsdExporter::new(settings, stats);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = ticks.tick() => {}
        }
        tokio::select! {
            () = &mut stop => break,
            () = exporter.flush() => {}
        }
    }
    if timeout(FINAL_FLUSH_TIMEOUT, exporter.flush()).await.is_err() {
        tracing::warn!("statsd final flush timed out; the last stats are lost");
    }
}

struct StatsdExporter {
    stats: Arc<Stats>,
    gauges: bool,
    names: StatNames,
    sent: SentTotals,
    client: StatsdClient,
    /// An unreachable server is logged once.
    failing: bool,
}

// === impl StatsdExporter ===

impl StatsdExporter {
    fn new(settings: StatsdSettings, stats: Arc<Stats>) -> Self {
        Self {
            stats,
            gauges: settings.gauges,
            names: StatNames::new(settings.dialect, &settings.tags, settings.mogrifiers),
            sent: SentTotals::default(),
            client: StatsdClient::new(settings.host, settings.port, settings.protocol),
            failing: false,
        }
    }

    async fn flush(&mut self) {
        let mut stats = snapshot(&self.stats);
        stats.retain(|_, value| self.gauges || !matches!(value, StatValue::Gauge(_)));
        self.sent.forget_missing(&stats);
        let lines = self.sent.lines(stats, &self.names);
        let totals = &mut self.sent;
        let outcome = self.client.send(&lines, |line| totals.mark_sent(line)).await;
        match (outcome, self.failing) {
            (Err(error), false) => {
                tracing::warn!(address = %self.client, %error, "statsd unreachable; keeping the stats to send later");
                self.failing = true;
            }
            (Ok(()), true) => {
                tracing::info!(address = %self.client, "statsd reachable again");
                self.failing = false;
            }
            (Err(_), true) | (Ok(()), false) => {}
        }
    }
}
