//! Attacks a weir as a hostile client would, and prints its resident memory before, at most during, and after each
//! attack, and the slowest health check meanwhile. Every attack is bounded in count and time.
//!
//! `make attacks` attacks a weir of its own; `cargo bench --bench attacks -- --http host:8080 --grpc host:8081` a
//! running one. `docs/security.md` explains the attacks and the output.

mod bodies;
mod connection;
mod control_plane;
mod headers;
mod http1;
mod observed;
mod options;
mod pages;
mod target;

use weir_benches::frame;
use weir_testing::child;

use std::process::ExitCode;

use clap::Parser as _;

use self::{observed::Watch, options::Options, target::Target};

/// An attack. It ends when `target` has had enough time, and returns what it holds open, which is dropped after the
/// measurement.
type Attack = fn(&Target) -> Held;

/// What an attack holds open, and how far it came.
pub(crate) struct Held {
    /// In words.
    pub(crate) outcome: String,
    pub(crate) _open: Box<dyn std::any::Any>,
}

/// The attacks on the ports of clients.
const ATTACKS: [(&str, Attack); 7] = [
    ("pages", pages::unread),
    ("headers-many", headers::many),
    ("headers-few", headers::few),
    ("headers-health", headers::health),
    ("http1-64k", http1::large),
    ("http1-15k", http1::small),
    ("bodies", bodies::large),
];

fn main() -> ExitCode {
    let options = Options::parse();
    // as many connections as the system allows
    weir_server::net::raise_open_files();
    println!(
        "{:<16}{:>12}{:>12}{:>12}{:>16}  outcome",
        "attack", "before MB", "peak MB", "after MB", "slowest health"
    );
    let mut too_much = Vec::new();
    for (name, attack) in ATTACKS {
        if options.includes(name) {
            // a process of its own for each, so that none is measured with the rest of another one
            let target = Target::of(&options);
            let peak = measure(name, &target, || attack(&target));
            if peak > options.most() {
                too_much.push(name);
            }
        }
    }
    for (name, attack) in control_plane::ATTACKS {
        if options.includes(name) && options.starts_its_own() {
            let plane = control_plane::ControlPlane::start(attack);
            let target = Target::with_control_plane(&options, plane.address());
            if measure(name, &target, || plane.attack()) > options.most() {
                too_much.push(name);
            }
        }
    }
    if too_much.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("more than {} MB: {}", options.most() >> 20, too_much.join(", "));
    ExitCode::FAILURE
}

/// Runs an attack, prints the memory of `target`, and returns its peak in bytes.
fn measure(name: &str, target: &Target, attack: impl FnOnce() -> Held) -> u64 {
    let watch = Watch::start(target);
    let held = attack();
    // what is held may still be read
    std::thread::sleep(target::SETTLE);
    let outcome = held.outcome.clone();
    drop(held);
    let seen = watch.stop(target);
    let mb = |bytes: u64| bytes.div_ceil(1 << 20);
    let slowest = seen.slowest.map_or("no answer".to_owned(), |time| format!("{} ms", time.as_millis()));
    println!(
        "{name:<16}{:>12}{:>12}{:>12}{slowest:>16}  {outcome}",
        mb(seen.before),
        mb(seen.peak),
        mb(seen.after)
    );
    seen.peak
}
