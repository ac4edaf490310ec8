//! Fair shares: the division of a capacity, pools over many cycles, and `share` in rule files. `tests/grpc/fair_shares.rs` has requests.

mod arrivals;
mod division;
mod patterns;
mod pool;
mod rules;
