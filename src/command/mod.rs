//! What the command line does besides serving.

pub mod call;
mod check;
mod explain;

pub use call::call;
pub use check::check;
pub use explain::explain;
