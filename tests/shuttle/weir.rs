//! The crates under the names that the program gives them, for tests that it shares.

pub use weir_limiter::*;

/// The stores.
pub mod store {
    pub use weir_coordinate as coordinated;
    pub use weir_coordinate::simulated;
    pub use weir_store::*;
}
