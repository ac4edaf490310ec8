//! Rules from a control plane by xDS.

#[path = "../support/local.rs"]
mod local;
#[path = "../redis/support/server.rs"]
#[expect(dead_code, reason = "this Redis neither fails nor asks for a password")]
mod redis_server;
#[expect(dead_code, reason = "these tests need few of the constructors")]
#[path = "../support/wire.rs"]
mod wire;

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

use weir_testing::{authority, child, mutual_tls, proxy, server_process};

use control_plane::DEADLINE;
