//! Replays recorded requests of envoyproxy/ratelimit against weir and compares everything that a user can observe.
//!
//! `README.md` describes the recording. Each environment of the recording runs with the counters in Redis, decided
//! there (`strict`) or locally (`interval`), and with the counters in memory. `generated.rs` adds random requests,
//! whose answers a model gives.

mod compare;
mod frozen_time;
mod generated;
mod model;
mod observe;
mod recording;
mod replay;
mod stop_increment;

use weir_harness::in_process;
use weir_testing::redis_server;

use self::{
    compare::Differences,
    recording::Recording,
    replay::{Backend, Observed},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_made_in_redis_equal_the_recorded_ones() {
    compare(&Backend::Redis("strict"), |differences, recording, observed| {
        differences.stats(recording, observed);
        differences.keys(recording, observed);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_made_locally_and_synced_equal_the_recorded_ones() {
    compare(&Backend::Redis("interval"), |differences, recording, observed| {
        // only `strict` has a local cache, whose rejections are not counted
        if !recording.env.contains_key("LOCAL_CACHE_SIZE_IN_BYTES") {
            differences.keys(recording, observed);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_made_in_memory_equal_the_recorded_ones() {
    compare(&Backend::Memory, |_, _, _| {}).await;
}

/// Replays the recording with `backend`. Compares the answers, `/rlconfig` and what `more` compares.
async fn compare(backend: &Backend, more: impl Fn(&mut Differences, &Recording, &Observed)) {
    let mut report = String::new();
    for recording in recording::load() {
        let observed = replay::run(&recording, backend).await;
        let mut differences = Differences::default();
        differences.answers(&recording, &observed);
        differences.rules(&recording, &observed);
        more(&mut differences, &recording, &observed);
        report += &differences.report(&format!("{backend:?} {:?}", recording.env));
    }
    assert!(report.is_empty(), "weir differs from envoyproxy/ratelimit\n{report}");
}
