//! The coordination under a network and a store of the worst kind: what each way promises holds whatever happens.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "small numbers, drawn by chance"
)]

mod exact;
mod fleet;
mod overshoot;
mod reported;
