//! weir as users run it: the real program behind a real Envoy, with a plain HTTP client.
//!
//! Each test starts its own weir and its own Envoy, on ports of the system's choice. Limits count in hours or years, so
//! that no window ends in the middle of a test.

mod console;
mod enforcement;
mod example;
mod example_tls;
mod failure;
mod fair_shares;
mod gateway_metrics;
mod headers;
mod in_flight;
mod istio;
mod limits;
mod llm;
mod monitoring;
mod overrides;
mod pod;
mod pod_tls;
mod quota;
mod replaces;
mod routing;
mod shadow;
mod support;
mod tokens;
mod tracing;

use weir_harness::collector;
use weir_testing::{authority, gateway_mapper, helm};
