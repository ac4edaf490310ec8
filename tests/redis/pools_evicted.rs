//! Pools of names that clients invent: each is dropped for the next one, with all that it does.

use std::{fs, time::Duration};

use tokio::time::sleep;

use crate::{
    support::{Server, Weir, until},
    wire::descriptor,
};

/// The most members and pools of this weir.
const BOUND: u64 = 1_024;

/// The number of invented names, and how many of them a request has.
const NAMES: u32 = 20_000;
const IN_REQUEST: u32 = 100;

const RULES: &str = "
domain: shop
descriptors:
  - key: service
    descriptors:
      - key: client
        rate_limit: { requests: 1000, per: 2m, share: {} }
  - key: probe
    rate_limit: { requests: 1000000, per: 365d, coordination: strict }
";

/// While Redis does not reply, each pool has something to tell it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_of_invented_names_are_dropped_with_all_that_they_do() {
    let (server, dir) = (Server::start(), tempfile::tempdir().expect("a directory"));
    fs::write(dir.path().join("rules.yaml"), RULES).expect("a file in it");
    let variables = [("WEIR_MAX_COUNTERS", "20480"), ("WEIR_ON_STORE_FAILURE", "allow")];
    let weir = Weir::start_with(&server, dir.path().to_str().expect("a plain path"), &variables).await;
    let reaches_redis = async || {
        weir.send("probe").await;
        weir.metric("weir_store_unavailable") == 0
    };
    until("redis replies", async || {
        reaches_redis().await && weir.metric("weir_decisions_total{how=\"waited\"}") > 0
    })
    .await;
    server.signal("STOP");
    until("redis is known to be silent", async || !reaches_redis().await).await;
    let send = async |from: u32, until: u32| {
        for first in (from..until).step_by(IN_REQUEST as usize) {
            let names = (first..first + IN_REQUEST).map(|i| format!("invented-{i:06}"));
            weir.send_all(names.map(|name| descriptor([("service", &*name), ("client", "c")])).collect())
                .await;
        }
    };
    send(0, 2_000).await;
    let before = weir.resident();
    send(2_000, NAMES).await;
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{} kB more for {NAMES} names", grown >> 10);
    assert!(weir.metric("weir_pools_members") <= BOUND);
    assert!(weir.metric("weir_pools_evicted_total") > 0);
    server.signal("CONT");
    until("redis replies again", reaches_redis).await;
    // each pool that is left tells Redis at its next step, and then nothing any more
    let pools = || server.send::<u64>(&["DBSIZE"]);
    let (mut last, mut same) = (0, 0);
    until("no pool has anything to tell", async || {
        sleep(Duration::from_millis(500)).await;
        let now = pools();
        same = if now == last && now > 10 { same + 1 } else { 0 };
        last = now;
        same >= 16
    })
    .await;
    // two keys for each pool, which counts as eight members, and those of other things. Beside other work the pools of one
    // request may be gone after their first call has left, which makes one key
    assert!(last <= 2 * BOUND / 8 + u64::from(IN_REQUEST) + 10, "{last} keys");
}
