//! Callers that wait, over gRPC and HTTP: a whole weir, real sockets, a clock that the tests set but for those of
//! reloads.

mod grpc;
mod http;
mod in_flight;
mod reloads;

use weir_harness::in_process;
use weir_testing::child;

use in_process::{Weir, get, until};

/// Two hits a minute of each value, and another limit that is never reached.
const RULES: &str = "
domain: partners
descriptors:
  - key: api
    rate_limit: { requests: 2, per: 1m, algorithm: fixed_window }
  - key: other
    rate_limit: { requests: 1000, per: 1m, algorithm: fixed_window }
";

/// Waits until as many callers wait.
async fn until_waiting(weir: &Weir, callers: usize) {
    let line = format!("\nweir_waiters {callers}\n");
    until("the number of callers that wait", async || {
        get(weir.addresses.http, "/metrics").await.contains(&line)
    })
    .await;
}
