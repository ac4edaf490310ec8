//! The keys, their limits, and a model of what may be admitted.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tempfile::TempDir;

/// Hits of a key that a window admits.
const LIMIT: u64 = 20;

/// The length of a window in seconds.
const WINDOW: u64 = 10;

/// The modes of coordination, each with a rule of its own, whose key is its name.
pub(crate) const MODES: [&str; 3] = ["interval", "lease", "strict"];

/// There is one key more for so many keys, and these get half of the load, so that limits are reached.
const HOT: u32 = 2_000;

/// The first of them: above all others.
const FIRST_HOT: u32 = 1 << 31;

/// The time in which all keys become others.
const TURNOVER: Duration = Duration::from_mins(1);

/// Admitted hits by mode, key and window.
#[derive(Debug, Default)]
pub(crate) struct Model {
    admitted: HashMap<(usize, u32, u64), u64>,
    pub(crate) counts: Counts,
}

/// What windows that have ended admitted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Hits that were certainly in one of them.
    pub(crate) admitted: u64,
    /// By mode, hits above the limits.
    pub(crate) overshoot: [u64; MODES.len()],
    /// By mode, the most hits above the limit of one window.
    pub(crate) most: [u64; MODES.len()],
}

/// A source of requests that look random: a linear congruential generator (Knuth's MMIX).
#[derive(Debug)]
pub(crate) struct Keys {
    state: u64,
    keys: u32,
}

/// Writes the rules into a directory.
pub(crate) fn rules() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let rule = |mode: &str| {
        format!(
            "  - key: {mode}\n    rate_limit: {{ requests: {LIMIT}, per: {WINDOW}s, algorithm: fixed_window, \
             coordination: {mode} }}\n"
        )
    };
    let text = format!("domain: soak\ndescriptors:\n{}", MODES.map(rule).concat());
    std::fs::write(dir.path().join("rules.yaml"), text).expect("a file in it");
    dir
}

/// Returns the window of this instant. Redis and weir read the same clock.
#[expect(clippy::disallowed_methods, reason = "windows are aligned to the epoch")]
pub(crate) fn window() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() / WINDOW
}

// === impl Keys ===

impl Keys {
    pub(crate) fn new(seed: u64, keys: u32) -> Self {
        Self { state: seed, keys }
    }

    /// Returns the mode and the key of the next request, `elapsed` after the start.
    pub(crate) fn next(&mut self, elapsed: Duration) -> (usize, u32) {
        let mut random = |below: u32| {
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let high = self.state >> 32;
            u32::try_from((high * u64::from(below)) >> 32).unwrap_or(0)
        };
        let mode = random(3) as usize;
        let (first, keys) =
            if random(2) == 0 { (FIRST_HOT, (self.keys / HOT).max(1)) } else { (0, self.keys) };
        let key = random(keys);
        // the range of keys moves: old ones leave it at one end, new ones enter at the other
        let moved = elapsed.as_millis() * u128::from(keys) / TURNOVER.as_millis();
        (mode, first + u32::try_from(moved).unwrap_or(0) % FIRST_HOT + key)
    }
}

// === impl Model ===

impl Model {
    /// Adds a hit that was admitted between the windows `sent` and `received`. It counts if that is one window.
    pub(crate) fn admit(&mut self, (mode, key): (usize, u32), sent: u64, received: u64) {
        if sent == received {
            *self.admitted.entry((mode, key, sent)).or_default() += 1;
        }
    }

    /// Counts and forgets the windows before `current` and the one before it, whose responses have arrived.
    pub(crate) fn close(&mut self, current: u64) {
        let counts = &mut self.counts;
        self.admitted.retain(|(mode, _, window), hits| {
            if *window + 1 >= current {
                return true;
            }
            counts.admitted += *hits;
            let over = hits.saturating_sub(LIMIT);
            counts.overshoot[*mode] += over;
            counts.most[*mode] = counts.most[*mode].max(over);
            false
        });
    }
}
