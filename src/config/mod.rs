//! From a user's files to the rules that they declare: every key of the reference's YAML, and more.
//!
//! ```text
//! files    which files are read, and under which name
//! yaml     a document as a tree that knows where everything is    (the only one that knows the YAML crate)
//! compile  the tree to `limit::Domain`, level by level, with `rate_limit`, `metadata` and `duration` for the parts;
//!          `keys` and `fields` know which keys there are and what type each has
//! sanity   what a file alone cannot tell: duplicates, and rules that can never match
//! watch    when to read again
//! ```

mod compile;
mod duration;
mod error;
mod fields;
mod files;
mod keys;
mod load;
mod metadata;
mod rate_limit;
mod redundant;
mod sanity;
mod scalar;
mod tier;
#[cfg(feature = "server")]
mod watch;
mod yaml;

#[cfg(feature = "server")]
pub(crate) use duration::{RIGHT as PERIOD_RIGHT, parse as parse_period};
#[cfg(feature = "server")]
pub(crate) use error::Place;
pub use error::{ConfigError, ConfigErrors, ConfigWarning};
pub use load::{Loaded, Options, load, parse};
#[cfg(feature = "server")]
pub use watch::Watch;
