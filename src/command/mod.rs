//! What the command line does besides serving.

mod check;

pub use check::check;
