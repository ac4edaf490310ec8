//! The stats, sent to a statsd server every few seconds.
//!
//! Nothing here is on the way of a request: a loop reads the counters, sends what they grew by since it last could, and
//! remembers what it could send. While the server is away the difference grows, and is sent when the server is back.

mod ledger;
mod line;
mod link;

use std::{collections::BTreeMap, future::Future, pin::pin, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval, timeout};

use self::{ledger::Ledger, line::Tags, link::Link};
use super::{readings::readings, stats::Stats};

/// How long a stop waits for the last numbers to be sent.
const FAREWELL: Duration = Duration::from_secs(2);

/// Where the stats go, and how.
#[derive(Clone, Debug)]
pub struct StatsdSettings {
    /// `STATSD_HOST`.
    pub host: String,
    /// `STATSD_PORT`.
    pub port: u16,
    /// `STATSD_PROTOCOL`. The reference speaks to `DogStatsD` over UDP only, whatever this says there.
    pub protocol: Protocol,
    /// `STATS_FLUSH_INTERVAL`; a millisecond at least.
    pub interval: Duration,
    /// `USE_DOG_STATSD`.
    pub dialect: Dialect,
    /// `EXTRA_TAGS`, which every stat gets. A tag without a name or a value is none.
    pub tags: BTreeMap<String, String>,
}

/// How the stats travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Over a connection that is made again whenever it breaks.
    #[default]
    Tcp,
    /// In datagrams of a size that networks do not cut.
    Udp,
}

/// How tags are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// As the reference does, in the name: `name.__tag=value`.
    #[default]
    Plain,
    /// As `DogStatsD` reads them, behind the value: `|#tag:value`.
    Dog,
}

/// A name that is none of those that there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown statsd protocol '{0}'; write tcp or udp")]
pub struct UnknownProtocol(String);

/// Sends `stats` as `settings` say until `stop`, and what is left once more then.
pub async fn run(settings: StatsdSettings, stats: Arc<Stats>, stop: impl Future<Output = ()>) {
    let mut stop = pin!(stop);
    let mut ticks = interval(settings.interval.max(Duration::from_millis(1)));
    // after a server that hung: one flush has all that several would have had
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sender = Sender::new(settings, stats);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = ticks.tick() => {}
        }
        tokio::select! {
            () = &mut stop => break,
            () = sender.flush() => {}
        }
    }
    if timeout(FAREWELL, sender.flush()).await.is_err() {
        tracing::warn!("the last stats could not be sent in time");
    }
}

/// What is sent, and how far that got.
struct Sender {
    stats: Arc<Stats>,
    tags: Tags,
    ledger: Ledger,
    link: Link,
    /// Whether the last flush failed: a server that stays away is worth one message.
    failing: bool,
}

// === impl Sender ===

impl Sender {
    fn new(settings: StatsdSettings, stats: Arc<Stats>) -> Self {
        Self {
            stats,
            tags: Tags::new(settings.dialect, &settings.tags),
            ledger: Ledger::default(),
            link: Link::new(settings.host, settings.port, settings.protocol),
            failing: false,
        }
    }

    async fn flush(&mut self) {
        let lines = self.ledger.lines(readings(&self.stats), &self.tags);
        let ledger = &mut self.ledger;
        let sent = self.link.send(&lines, |line| ledger.settle(line)).await;
        match (sent, self.failing) {
            (Err(error), false) => {
                tracing::warn!(address = %self.link, %error, "stats cannot be sent to statsd");
                self.failing = true;
            }
            (Ok(()), true) => {
                tracing::info!(address = %self.link, "stats are sent to statsd again");
                self.failing = false;
            }
            (Err(_), true) | (Ok(()), false) => {}
        }
    }
}

// === impl Protocol ===

impl std::str::FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(name: &str) -> Result<Self, UnknownProtocol> {
        match name {
            "tcp" | "tcp4" | "tcp6" => Ok(Self::Tcp),
            "udp" | "udp4" | "udp6" => Ok(Self::Udp),
            _ => Err(UnknownProtocol(name.to_owned())),
        }
    }
}
