//! Limits for programs that call others: every request done, none above the limit, waiting a little when it must.
//!
//! A [`Limiter`] applies rules in this process. [`Limiter::acquire`] takes hits when they fit, up to a deadline, in the
//! order of arrival. A call that could not be served in time is rejected at once, with the wait that it would need.
//!
//! ```
//! use std::time::Duration;
//!
//! use weir_client::{Limiter, limit::Hits};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let rules = "
//! domain: partners
//! descriptors:
//!   - key: api
//!     rate_limit: { requests: 2, per: 100ms, algorithm: sliding_window }
//! ";
//! let limiter = Limiter::builder().rules_text(rules).build().await?;
//! for _ in 0..5 {
//!     let permit = limiter.acquire("partners", &[("api", "stickers")], Hits(1), Duration::from_secs(1)).await?;
//!     println!("waited {:?}", permit.waited());
//! }
//! # Ok(())
//! # })
//! # }
//! ```

#![warn(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::return_self_not_must_use
)]

mod builder;
mod error;
pub mod guide;
mod key;
#[cfg(feature = "tower")]
mod layer;
mod limiter;
mod permit;
mod rules;
mod selected_store;
#[cfg(feature = "redis")]
mod store_thread;

pub use builder::{BuildError, Builder};
pub use error::AcquireError;
pub use key::Key;
#[cfg(feature = "tower")]
pub use layer::{LayerError, LimitLayer, LimitService};
pub use limiter::Limiter;
pub use permit::Permit;
pub use selected_store::AnyStore;
#[cfg(feature = "redis")]
pub use store_thread::StoreThread;
#[cfg(feature = "redis")]
pub use weir_coordinate::CoordinationSettings;
#[cfg(feature = "disk")]
pub use weir_disk as disk;
pub use weir_limit as limit;
pub use weir_store::{self as store, clock};
