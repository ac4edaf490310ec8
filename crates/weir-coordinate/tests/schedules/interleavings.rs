//! Decisions that wait for the store, on tokio's own scheduler with one thread, where each seed is another
//! interleaving, and the same one each time. `make interleavings` runs the same under Shuttle, which also switches
//! tasks between two locks.

use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Builder;

use crate::waiting::{BUDGET, cases, run};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, max_shrink_time: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn every_waiting_decision_ends_and_counts_once(case in cases()) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(run(&case, Duration::from_millis(BUDGET + 1), || {}))?;
    }
}
