//! The console in a real Chromium: the page of a real weir, with real traffic.
//!
//! Each test starts its own weir and its own browser.

mod files;
mod fleet;
mod hostile_names;
mod manners;
mod pictures;
mod questions;
mod site;
mod tokens;
mod views;
