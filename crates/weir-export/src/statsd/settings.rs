//! The settings of the statsd exporter.

use std::{collections::BTreeMap, time::Duration};

use super::mogrifier::Mogrifier;

/// Where and how stats are sent.
#[derive(Clone, Debug)]
pub struct StatsdSettings {
    /// `STATSD_HOST`.
    pub host: String,
    /// `STATSD_PORT`.
    pub port: u16,
    /// `STATSD_PROTOCOL`. envoyproxy/ratelimit sends to `DogStatsD` over UDP only, whatever this is.
    pub protocol: Protocol,
    /// `STATS_FLUSH_INTERVAL`; at least a millisecond.
    pub interval: Duration,
    /// `USE_DOG_STATSD`.
    pub dialect: Dialect,
    /// `EXTRA_TAGS`, which every stat gets. Tags with an empty name or value are ignored.
    pub tags: BTreeMap<String, String>,
    /// `WEIR_STATSD_GAUGES`: whether gauges are sent. All are weir's own, and many services charge by name.
    pub gauges: bool,
    /// `USE_DOG_STATSD_MOGRIFIERS`, in the order in which they are tried. Without effect in [`Dialect::Plain`].
    pub mogrifiers: Vec<Mogrifier>,
}

/// The transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// A connection, reopened whenever it breaks.
    #[default]
    Tcp,
    /// Datagrams of a size that networks do not fragment.
    Udp,
}

/// How tags are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// In the name, like envoyproxy/ratelimit: `name.__tag=value`.
    #[default]
    Plain,
    /// After the value, like `DogStatsD`: `|#tag:value`.
    Dog,
}
