use std::{collections::BTreeMap, time::Duration};

use super::mogrifier::Mogrifier;

#[derive(Clone, Debug)]
pub struct StatsdSettings {
    pub host: String,
    pub port: u16,
    /// `STATSD_PROTOCOL`. envoyproxy/ratelimit sends to `DogStatsD` over UDP only, whatever this is.
    pub protocol: Protocol,
    /// `STATS_FLUSH_INTERVAL`; at least a millisecond.
    pub interval: Duration,
    pub dialect: Dialect,
    /// `EXTRA_TAGS`, which every stat gets. Tags with an empty name or value are ignored.
    pub tags: BTreeMap<String, String>,
    /// `WEIR_STATSD_GAUGES`: whether gauges are sent. All are weir's own, and many services charge by name.
    pub gauges: bool,
    /// `USE_DOG_STATSD_MOGRIFIERS`, in the order in which they are tried. Without effect in [`Dialect::Plain`].
    pub mogrifiers: Vec<Mogrifier>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// A connection, reopened whenever it breaks.
    #[default]
    Tcp,
    /// Datagrams of a size that networks do not fragment.
    Udp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// In the name, like envoyproxy/ratelimit: `name.__tag=value`.
    #[default]
    Plain,
    /// After the value, like `DogStatsD`: `|#tag:value`.
    Dog,
}
