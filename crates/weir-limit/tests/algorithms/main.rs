//! Tests the documented properties of algorithms and tiers on random traffic.

mod bounds;
mod calendars;
mod changes;
mod model;
mod promises;
mod releases;
mod support;
