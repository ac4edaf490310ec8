//! Every coordination mode is the same limiter.
//!
//! Random rules and requests go through the real decision path, a [`Limiter`](weir_limiter::Limiter) in front of the memory
//! store, the one on disk or a coordinated one, in simulated time. A plain model, written from `docs/rules.md`, says
//! what each answer must be.

mod bucket;
mod case;
mod found;
mod generate;
mod model;
mod models;
mod on_disk;
mod one_instance;
mod run;
mod several_instances;
