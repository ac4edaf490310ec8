//! Shared with envoyproxy/ratelimit: both count the same keys on the same servers, as numbers that both can read.

use weir_limit::{Coordination, OverLimitPolicy, Scope};
use weir_store::clock::{Clock as _, SystemClock};

use crate::support::{Instance, Server, YEAR, settings, until, window};

/// The client of envoyproxy/ratelimit, which reads a count, and then adds to it or creates it.
struct Reference<'a> {
    servers: Vec<&'a Server>,
}

impl Reference<'_> {
    /// Returns the server of `key`: the CRC-32 of the key modulo their number.
    fn server(&self, key: &str) -> &Server {
        let mut crc = u32::MAX;
        for byte in key.bytes() {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
            }
        }
        self.servers[!crc as usize % self.servers.len()]
    }

    /// Returns whether `hits` of `key` are within `limit`, and counts them in either case.
    fn admits(&self, key: &str, hits: u64, limit: u64) -> bool {
        let server = self.server(key);
        let before =
            server.get(key).map_or(0, |count| count.parse::<u64>().expect("a number that Go parses"));
        if server.send(&format!("incr {key} {hits}")) == "NOT_FOUND" {
            let text = hits.to_string();
            let added = server.send(&format!("add {key} 0 {} {}\r\n{text}", 86_400, text.len()));
            assert_eq!(added, "STORED");
        }
        before + hits <= limit
    }
}

/// Returns the key of the counter of `value` in both services, for windows of `seconds`.
fn key(value: &str, seconds: u64) -> String {
    let now = SystemClock.now().as_nanos() / 1_000_000_000;
    format!("fleet_k_{value}_{}", now - now % seconds)
}

fn instance(servers: &[&Server], requests: u32, mode: Coordination) -> Instance {
    Instance::new(settings(servers), &[window(requests, YEAR)], OverLimitPolicy::Count, mode)
}

#[tokio::test]
async fn both_services_count_together() {
    let server = Server::start();
    let reference = Reference { servers: vec![&server] };
    let weir = instance(&[&server], 10, Coordination::Strict);
    weir.wait_until_connected().await;
    let key = key("v", YEAR);
    assert!(reference.admits(&key, 4, 10), "it creates the counter");
    let decision = weir.send("v", 3).await;
    assert_eq!((decision.over, decision.remaining), (false, 3));
    assert!(reference.admits(&key, 3, 10));
    assert!(weir.send("v", 1).await.over);
    assert!(!reference.admits(&key, 1, 10));
    assert_eq!(server.get(&key).as_deref(), Some("12"), "rejected hits count in both");
    // weir creates the counter
    assert!(!weir.send("w", 9).await.over);
    let other = crate::reference::key("w", YEAR);
    assert!(reference.admits(&other, 1, 10));
    assert!(!reference.admits(&other, 1, 10));
}

/// A number that becomes shorter is padded by Memcached, and envoyproxy/ratelimit takes a padded one for 0.
#[tokio::test]
async fn a_number_stays_readable_after_a_rejection_that_does_not_count() {
    let server = Server::start();
    let reference = Reference { servers: vec![&server] };
    let weir = instance(&[&server], 50, Coordination::Strict);
    weir.wait_until_connected().await;
    let key = key("v", YEAR);
    assert!(!weir.send("v", 50).await.over);
    let decision = weir.decide("v", 60, false, Scope::Request).await;
    assert_eq!((decision.over, decision.remaining), (true, 0));
    until("the number is written again", async || server.get(&key).as_deref() == Some("50")).await;
    assert!(!reference.admits(&key, 1, 50));
}

#[tokio::test]
async fn interval_reports_to_the_same_counter() {
    let server = Server::start();
    let reference = Reference { servers: vec![&server] };
    let weir = instance(&[&server], 1_000, Coordination::Interval);
    weir.wait_until_connected().await;
    let key = key("v", YEAR);
    assert!(reference.admits(&key, 400, 1_000));
    for _ in 0..30 {
        assert!(!weir.send("v", 10).await.over);
    }
    until("the hits are reported", async || server.get(&key).as_deref() == Some("700")).await;
    assert!(reference.admits(&key, 300, 1_000));
    until("weir knows that nothing is left", async || weir.send("v", 1).await.over).await;
}

#[tokio::test]
async fn every_key_is_on_the_server_where_the_other_service_looks_for_it() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let reference = Reference { servers: servers.iter().collect() };
    let weir = instance(&reference.servers, 1, Coordination::Strict);
    weir.wait_until_connected().await;
    let mut used = [0; 3];
    for i in 0..60 {
        let value = format!("tenant-{i}");
        assert!(!weir.send(&value, 1).await.over);
        let key = key(&value, YEAR);
        assert!(!reference.admits(&key, 1, 1), "{key} has been counted");
        for (server, used) in servers.iter().zip(&mut used) {
            *used += usize::from(server.get(&key).is_some());
        }
    }
    assert!(used.iter().sum::<usize>() == 60 && used.iter().all(|used| *used > 5), "{used:?}");
}

#[tokio::test]
async fn a_check_without_hits_creates_no_counter() {
    let server = Server::start();
    let weir = instance(&[&server], 10, Coordination::Strict);
    weir.wait_until_connected().await;
    let decision = weir.send("v", 0).await;
    assert_eq!((decision.over, decision.remaining), (false, 10));
    assert_eq!(server.get(&key("v", YEAR)), None);
    weir.send("v", 10).await;
    assert_eq!(weir.send("v", 0).await.remaining, 0);
}

#[tokio::test]
async fn hits_that_are_given_back_leave_a_number_that_the_other_service_can_read() {
    let server = Server::start();
    let weir = instance(&[&server], 1_000, Coordination::Strict);
    weir.wait_until_connected().await;
    let key = key("v", YEAR);
    weir.send("v", 102).await;
    weir.give_back("v", 95).await;
    // Memcached itself writes `7  `
    until("the number has no spaces", async || server.get(&key).as_deref() == Some("7")).await;
    let expiry = server.send(&format!("mg {key} t"));
    let seconds: u64 = expiry.strip_prefix("HD t").expect("it expires").parse().expect("a number");
    assert!((YEAR - 60..YEAR + 300).contains(&seconds), "{seconds}");
    weir.give_back("v", 95).await;
    until("no count is below zero", async || server.get(&key).as_deref() == Some("0")).await;
    weir.give_back("unknown", 5).await;
    weir.send("v", 3).await;
    weir.give_back("v", 3).await;
    until("what was given back later is known", async || server.get(&key).as_deref() == Some("0")).await;
    assert_eq!(server.get(&crate::reference::key("unknown", YEAR)), None, "nothing is created");
}
