//! Requests in flight over several instances and a simulated store: random schedules of faults, and callers in a loop.

mod callers;
mod fleet;
mod reserved;
mod schedules;
mod starts;
mod store;
