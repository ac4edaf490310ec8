//! Decisions that wait, and many keys at once, in random schedules of tasks, instances and faults.

mod interleavings;
mod many_keys;
mod waiting;
