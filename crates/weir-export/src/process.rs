//! The resources that this process uses, from Linux' `/proc`.

use std::fs;

use crate::prometheus::Kind;

/// Linux' `USER_HZ`: 100 on every architecture that Rust's standard library supports.
const TICKS_PER_SECOND: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessMetric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) value: f64,
}

/// Returns the resident memory in bytes; none outside Linux.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of this machine's memory")]
pub fn resident_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status_field(&status, "VmRSS:").map(|kilobytes| kilobytes as u64 * 1024)
}

/// Empty outside Linux.
pub(super) fn metrics() -> Vec<ProcessMetric> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
    let (stat, status, limits, system) =
        (read("self/stat"), read("self/status"), read("self/limits"), read("stat"));
    // one of the descriptors is that of the directory
    let open_files = fs::read_dir("/proc/self/fd").ok();
    let open_files =
        open_files.and_then(|files| u32::try_from(files.count().saturating_sub(1)).ok()).map(f64::from);
    let ticks = |field| stat_field(&stat, field).map(|ticks| ticks / f64::from(TICKS_PER_SECOND));
    let metric =
        |name, help, kind, value: Option<f64>| Some(ProcessMetric { name, help, kind, value: value? });
    [
        metric(
            "process_cpu_seconds_total",
            "User and system CPU time in seconds.",
            Kind::Counter,
            ticks(UTIME).zip(ticks(STIME)).map(|(user, system)| user + system),
        ),
        metric(
            "process_resident_memory_bytes",
            "Resident memory in bytes.",
            Kind::Gauge,
            status_field(&status, "VmRSS:").map(|kilobytes| kilobytes * 1024.0),
        ),
        metric(
            "process_virtual_memory_bytes",
            "Virtual memory in bytes.",
            Kind::Gauge,
            status_field(&status, "VmSize:").map(|kilobytes| kilobytes * 1024.0),
        ),
        metric("process_open_fds", "Open file descriptors.", Kind::Gauge, open_files),
        metric(
            "process_max_fds",
            "The limit on open file descriptors.",
            Kind::Gauge,
            status_field(&limits, "Max open files"),
        ),
        metric(
            "process_start_time_seconds",
            "The start of the process, in seconds since the epoch.",
            Kind::Gauge,
            ticks(START_TIME).zip(status_field(&system, "btime")).map(|(uptime, boot)| boot + uptime),
        ),
        metric("process_threads", "Threads of the process.", Kind::Gauge, status_field(&status, "Threads:")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The fields of `/proc/self/stat`, counted from 1 as in proc(5).
const UTIME: usize = 14;
const STIME: usize = 15;
const START_TIME: usize = 22;

/// The second field, the program's name, may contain spaces and `)`.
fn stat_field(stat: &str, field: usize) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(field.checked_sub(3)?)?.parse().ok()
}

fn status_field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_after_a_name_with_spaces() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 12345 1000 200";
        assert_eq!((stat_field(stat, UTIME), stat_field(stat, STIME)), (Some(250.0), Some(50.0)));
        assert_eq!(stat_field(stat, START_TIME), Some(12345.0));
        assert_eq!(stat_field("", UTIME), None);
        assert_eq!(status_field("Name:\tweir\nVmRSS:\t  120 kB\n", "VmRSS:"), Some(120.0));
        assert_eq!(
            status_field("Max open files            1024                 4096     files\n", "Max open files"),
            Some(1024.0)
        );
        assert_eq!(
            status_field(
                "Max open files            unlimited            unlimited  files\n",
                "Max open files"
            ),
            None
        );
    }
}
