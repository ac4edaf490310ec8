//! The command line of weir.

fn main() {}
