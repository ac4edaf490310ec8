//! What the command line does besides serving.

mod check;
mod explain;

pub use check::check;
pub use explain::explain;
