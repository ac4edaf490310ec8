//! Where rules come from: a [`DirectorySource`], or a control plane ([`xds`]). Both are a [`RuleSource`].

mod directory;
mod watch;
pub mod xds;

pub use directory::{DirectorySource, RuleSource};
pub use watch::Watch;
