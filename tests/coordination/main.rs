//! Tests of coordination: several instances share a limit through a simulated store, in simulated time.

mod all_or_none;
mod auto;
mod bounds;
mod eviction;
mod extreme;
mod fallback;
mod far;
mod fetches;
mod fleet;
mod known_rejections;
mod lease;
mod local_cache;
mod many_keys;
mod metrics;
mod nodes;
mod odd_replies;
mod outage;
mod pair;
mod rejections;
mod reservations;
mod siblings;
mod silence;
mod single;
mod starvation;
mod strict;
mod unsupported;
