//! Memcached as the store that instances share, against real servers.

mod faults;
mod fleet;
mod keys;
mod name_server;
mod operations;
mod reference;
mod srv;
mod support;
mod tls;

use weir_testing::proxy;
