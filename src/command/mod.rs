//! What the subcommands do, apart from how they are typed.

pub mod call;
mod descriptors;

pub use call::call;
pub use descriptors::{Descriptors, parse_entry};
