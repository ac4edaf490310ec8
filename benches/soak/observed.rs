//! What the weirs report, and what the system reports about them.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use super::child::Serving;

/// The sums over all weirs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observed {
    /// Bytes of resident memory.
    pub(crate) resident: u64,
    /// Hits that Redis did not count, since the start.
    pub(crate) lost: u64,
    /// Hits that Redis may not have counted, since the start.
    pub(crate) unknown: u64,
    /// Counters that were evicted with hits, since the start.
    pub(crate) evicted: u64,
    /// Decisions of the fallback, since the start.
    pub(crate) fallback: u64,
}

impl Observed {
    /// Reads all of it.
    ///
    /// # Panics
    ///
    /// If one of the weirs has ended, or lacks a metric.
    pub(crate) fn of(weirs: &[Serving]) -> Self {
        let mut all = Self::default();
        for weir in weirs {
            let page = metrics(weir);
            let value = |name: &str| -> u64 {
                let mut values = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                values
                    .next_back()
                    .and_then(|value| value.trim().parse().ok())
                    .unwrap_or_else(|| panic!("no {name}"))
            };
            all.resident += resident(weir.pid());
            all.lost += value("weir_hits_unreported_total");
            all.unknown += value("weir_hits_delivery_unknown_total");
            all.evicted += value("weir_counters_evicted_total{table=\"coordinated\",hits=\"lost\"}");
            all.fallback += value("weir_decisions_total{how=\"fallback\"}");
        }
        all
    }
}

fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
    kilobytes.and_then(|number| number.trim().parse::<u64>().ok()).expect("its resident memory") * 1024
}

fn metrics(weir: &Serving) -> String {
    let mut stream = TcpStream::connect(weir.address("debug")).expect("it listens");
    let get = b"GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    stream.write_all(get).expect("it accepts the bytes");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    page
}
