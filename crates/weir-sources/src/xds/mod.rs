//! Rules from an xDS control plane, such as Envoy Gateway: the state-of-the-world variant of the aggregated discovery
//! service, with resources of the type `ratelimit.config.ratelimit.v3.RateLimitConfig`.
//!
//! | file | contents |
//! | --- | --- |
//! | `source` | the [`RuleSource`](crate::directory::RuleSource): hands snapshots to the service, and its verdicts back |
//! | `client` | the connection: subscribes, acknowledges, connects again |
//! | `requests`, `response` | what it sends, and what it receives |
//! | `parts` | bounds on what a response may become in memory |
//! | `resource` | a resource to the tree of a rule file |
//! | `settings`, `metrics` | the settings, and what is counted |

mod client;
#[cfg(any(debug_assertions, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod metrics;
mod parts;
mod requests;
mod resource;
mod response;
mod settings;
mod source;

pub use settings::{XdsBackoff, XdsSettings, XdsTls};
pub use source::XdsSource;
