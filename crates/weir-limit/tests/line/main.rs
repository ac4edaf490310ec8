//! Lines of waiters, against what they promise: random schedules of callers, cancels, returns, reloads and late timers,
//! with every algorithm, several tiers and mixed weights.

mod asking;
mod cases;
mod checks;
mod examples;
mod schedules;
mod smoothing;
mod world;
