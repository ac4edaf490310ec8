//! Rules from a control plane by xDS.

mod ai_gateway;
mod control_plane;
mod defaults;
mod hostile;
mod merging;
mod program;
mod program_log;
mod resources;
mod service;
mod silence;
mod starting;
mod tls;
mod updates;

use weir_harness::{local, wire};
use weir_testing::{authority, child, mutual_tls, proxy, redis_server};
