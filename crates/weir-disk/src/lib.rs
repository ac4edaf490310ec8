//! The store on disk: counters survive a restart, without another service.
//!
//! Recent counters are in memory, and decisions are made there (`memory/`, with `notes.rs`), so a decision costs what
//! it costs in memory. A counter that is not in memory is read before its first decision (`reader.rs`), off the threads
//! that serve and within the decision budget; past it `on_store_failure` decides, and what is counted meanwhile is
//! added when the state arrives (`merge.rs`). Changed counters are written in numbered batches (`writer.rs`) as records
//! (`record.rs`) of an engine (`engine.rs`). What the engine lacks is made good around it: `progress.rs` and
//! `checksums.rs` find damage that it does not see, `salvage.rs` goes on without what is damaged, and `maintenance.rs` has
//! expired records removed (`expiry.rs`).

mod buckets;
mod budget;
mod checksums;
mod data;
mod data_dir;
mod engine;
mod error;
mod expiry;
mod filter;
#[cfg(any(debug_assertions, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod maintenance;
mod merge;
mod metrics;
mod notes;
mod progress;
mod reader;
pub mod record;
mod salvage;
mod settings;
mod state;
mod store;
mod writer;

pub use data::{Data, StoredCounter};
pub use error::DiskError;
pub use settings::{DiskSettings, DiskSync, OnDamage};
pub use store::DiskStore;
