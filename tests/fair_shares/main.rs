//! Fair shares: the division of a capacity, pools over many cycles, and the requests of their members.

#[path = "../support/in_process.rs"]
mod in_process;

mod arrivals;
mod division;
mod patterns;
mod pool;
mod requests;
mod rules;
