//! Fair shares: the division of a capacity, and pools over many cycles. `tests/grpc/fair_shares.rs` has requests.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "random demand of small numbers"
)]

mod arrivals;
mod division;
mod fleet;
mod fleets;
mod flood;
mod patterns;
mod pool;
mod requests;
mod store;
