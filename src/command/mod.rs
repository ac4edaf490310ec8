//! The commands besides `serve`.

pub mod call;
mod check;
pub mod data;
mod descriptors;
mod error;
mod explain;
pub mod health;
pub mod hot;
mod lines;
mod local_page;
mod progress;
pub mod simulate;
mod simulate_rule;
mod simulate_share;
mod simulate_wait;
pub mod token;

pub use call::call;
pub use check::{CheckFormat, CheckOptions, check};
pub use data::data;
pub use descriptors::{Descriptors, parse_entry};
pub use error::CommandResult;
pub use explain::{Explained, ExplainedRequest, explain};
pub use health::health;
pub use hot::hot;
pub use simulate::simulate;
pub use simulate_rule::DescriptorToSimulate;
pub use token::token;
