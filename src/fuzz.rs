//! The fuzz targets: what each does with an input, and the bounds that hold for every input.
//!
//! `fuzz/` runs them on new inputs, under `cfg(fuzzing)`, which cargo-fuzz sets; the unit test below runs them on the
//! inputs in `fuzz/corpus/`. No other build contains this module, so that nothing private becomes public. Each target
//! is beside the code that it tests.

use weir_sources::xds;

/// A function that accepts any bytes, and panics if weir does something wrong with them.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of its binary in `fuzz/`, and of its directory in `fuzz/corpus/`.
    pub name: &'static str,
    /// The most bytes of an input; longer ones are cut. Bugs need short inputs, and long ones are slow.
    pub max_input: usize,
    /// The most bytes that it may hold at once for an input.
    pub max_memory: usize,
    run: fn(&[u8]),
}

pub const TARGETS: [Target; 13] = [
    target("disk_record", 4, 8, weir_disk::fuzz::record),
    target("dns_answer", 4, 8, weir_net::dns::fuzz::answer),
    target("grpc_frame", 4, 16, weir_server::fuzz::frame),
    target("grpc_message", 4, 8, weir_server::fuzz::message),
    target("http2", 8, 8, weir_server::fuzz::connection),
    target("json", 4, 8, weir_server::fuzz::json),
    target("memcached_reply", 4, 8, weir_remotes::memcached::fuzz::reply),
    target("recording", 4, 8, weir_recording::fuzz::recording),
    target("redis_commands", 8, 8, weir_server::fuzz::redis_commands),
    target("redis_reply", 4, 8, weir_remotes::redis::fuzz::reply),
    target("redis_slots", 4, 8, weir_remotes::redis::fuzz::slots),
    target("rules", 4, 32, weir_config::fuzz::rules),
    target("xds_resource", 4, 32, xds::fuzz::resource),
];

/// `max_input` in KiB, `max_memory` in MiB.
const fn target(name: &'static str, max_input: usize, max_memory: usize, run: fn(&[u8])) -> Target {
    Target { name, max_input: max_input << 10, max_memory: max_memory << 20, run }
}

// === impl Target ===

impl Target {
    /// Returns the target called `name`.
    pub fn named(name: &str) -> Self {
        *TARGETS.iter().find(|target| target.name == name).expect("a target of this name")
    }

    pub fn run(&self, input: &[u8]) {
        (self.run)(&input[..input.len().min(self.max_input)]);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path, time::Instant};

    use super::*;

    /// Milliseconds that an input may take in a build without optimizations, on a loaded machine.
    const MAX_MILLIS: u128 = 10_000;

    fn names(dir: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(dir).expect("the directory can be read");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }

    /// Runs `target` on its corpus, and on the beginnings of its inputs, as from a peer that stops in between.
    fn replay(target: &Target) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
        let mut inputs = 0;
        for name in names(&dir) {
            let input = fs::read(dir.join(&name)).expect("the input can be read");
            for end in [input.len() / 2, input.len()] {
                let begun = Instant::now();
                let used = allocation_counter::measure(|| target.run(&input[..end]));
                let (held, millis) = (used.bytes_max, begun.elapsed().as_millis());
                let what = format!("{} holds {held} bytes and takes {millis} ms on {name}", target.name);
                assert!(held <= target.max_memory as u64 && millis < MAX_MILLIS, "{what}");
            }
            inputs += 1;
        }
        assert!(inputs > 0, "{} has no inputs", target.name);
    }

    #[test]
    fn every_input_of_the_corpus_is_handled_within_bounds() {
        let corpus = names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus"));
        assert_eq!(corpus, TARGETS.iter().map(|target| target.name.to_owned()).collect());
        for target in &TARGETS {
            // what is made once counts for no input
            target.run(&[]);
            replay(target);
        }
    }

    #[test]
    fn every_target_has_a_binary() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
        assert_eq!(names(&dir), TARGETS.iter().map(|target| format!("{}.rs", target.name)).collect());
        let manifest = fs::read_to_string(dir.join("../Cargo.toml")).expect("the manifest can be read");
        for target in &TARGETS {
            assert!(manifest.contains(&format!("name = \"{}\"\n", target.name)), "{}", target.name);
        }
    }
}
