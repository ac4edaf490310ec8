//! Redis as the store that instances share, against real servers.

mod algorithms;
mod faults;
mod fleet;
mod keys;
mod places;
mod support;
