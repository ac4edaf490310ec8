//! One replay: a weir with the recording's rules and environment, and what it answers to the recording's requests.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    frozen_time,
    in_process::{NOW, Weir},
    observe,
    recording::{self, Recording},
    redis_server::Server,
};

/// Where weir counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backend {
    /// In Redis, with this coordination mode.
    Redis(&'static str),
    /// In its own memory.
    Memory,
}

/// What weir showed.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) answers: Vec<Value>,
    pub(crate) keys: Vec<(String, u64)>,
    pub(crate) stats: BTreeMap<String, u64>,
    pub(crate) rlconfig: Vec<String>,
}

/// Sends the requests of `recording` to a new weir, one at a time.
pub(crate) async fn run(recording: &Recording, backend: &Backend) -> Observed {
    let redis = match backend {
        Backend::Redis(_) => Some(Server::start()),
        Backend::Memory => None,
    };
    let mut variables = recording.env.clone();
    if let (Backend::Redis(coordination), Some(redis)) = (backend, &redis) {
        let address = frozen_time::proxy(([127, 0, 0, 1], redis.port()).into(), NOW).await;
        let own = [
            ("REDIS_URL", address.to_string()),
            ("WEIR_COORDINATION", (*coordination).to_owned()),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true".to_owned()),
            // a busy machine must not change the answers
            ("WEIR_DECISION_BUDGET", "20s".to_owned()),
        ];
        variables.extend(own.map(|(name, value)| (name.to_owned(), value)));
    }
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let files: Vec<(&str, &str)> =
        recording.rules.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let mut weir = Weir::try_start_files(&files, &variables).await.expect("envoyproxy/ratelimit started");
    if redis.is_some() {
        observe::until_connected(&weir).await;
    }

    let mut answers = Vec::with_capacity(recording.requests.len());
    for request in &recording.requests {
        answers.push(observe::answer(weir.try_decide(recording::request(request)).await));
    }
    let (stats, rlconfig) = (observe::stats(&weir).await, observe::rules(&weir).await);
    // sends what Redis does not know yet
    weir.stop().await.expect("it does not panic").expect("it stops");
    let keys = redis.as_ref().map(observe::keys).unwrap_or_default();
    Observed { answers, keys, stats, rlconfig }
}
