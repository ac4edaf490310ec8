//! Properties of the coordination modes that hold with any network and any faults of the store.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "small numbers, chosen at random"
)]

mod calls;
mod exact;
mod fleet;
mod metrics;
mod overshoot;
mod reported;
mod split;
