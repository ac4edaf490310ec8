//! Rules from a control plane by xDS.

#[expect(dead_code, reason = "other tests need other certificates")]
#[path = "../support/authority.rs"]
mod authority;
#[expect(dead_code, reason = "other tests run commands to their end")]
#[path = "../support/child.rs"]
mod child;
#[path = "../support/local.rs"]
mod local;
#[path = "../support/mutual_tls.rs"]
mod mutual_tls;
#[expect(dead_code, reason = "other tests need other faults")]
#[path = "../support/proxy.rs"]
mod proxy;
#[expect(dead_code, reason = "these tests need few of the constructors")]
#[path = "../support/wire.rs"]
mod wire;

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
