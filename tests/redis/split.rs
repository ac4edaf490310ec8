//! Weirs that split a limit, as processes with a real Redis: one is killed, one starts, and Redis loses its data.

use std::collections::BTreeMap;

use tokio::task::JoinSet;
use weir_limit::{Period, Timestamp};
use weir_store::clock::{Clock as _, SystemClock};

use crate::support::{Weirs, until};

/// Divisible by two and by three instances, and not by four.
const LIMIT: u64 = 126;

const PERIOD: Period = Period::from_secs(1);

/// How far a weir's estimate of Redis' clock may be off on a busy machine.
const MARGIN: Period = Period::from_millis(100);

/// The start and the end of requests that were admitted.
#[derive(Default)]
struct Admitted(Vec<(Timestamp, Timestamp)>);

impl Admitted {
    /// Sends `count` requests to each weir, all at once.
    async fn send(&mut self, weirs: &Weirs, count: usize) {
        let mut requests = JoinSet::new();
        for weir in &weirs.all {
            for _ in 0..count {
                let request = weir.send_hits("k", 1);
                requests.spawn(async move {
                    let begun = SystemClock.now();
                    request.await.then(|| (begun, SystemClock.now()))
                });
            }
        }
        self.0.extend(requests.join_all().await.into_iter().flatten());
    }

    /// Sends requests until all of the limit was used in two windows that began after now, and checks every window.
    async fn use_all(&mut self, weirs: &Weirs, what: &str) {
        let from = SystemClock.now().window_end(PERIOD);
        until(what, async || {
            self.send(weirs, 15).await;
            // a request that started in one window and ended in another may belong to either
            let mut touched = BTreeMap::<Timestamp, u64>::new();
            for (begun, ended) in &self.0 {
                let (first, last) = (begun.window_end(PERIOD), ended.window_end(PERIOD));
                *touched.entry(first).or_default() += 1;
                if last != first {
                    *touched.entry(last).or_default() += 1;
                }
            }
            touched.into_iter().filter(|(end, hits)| *end > from && *hits >= LIMIT).count() >= 2
        })
        .await;
        let mut certain = BTreeMap::<Timestamp, u64>::new();
        for (begun, ended) in &self.0 {
            let end = begun.window_end(PERIOD);
            let is_certain = end.since(*ended) > MARGIN
                && Timestamp::from_nanos(begun.as_nanos() - MARGIN.as_nanos()).window_end(PERIOD) == end;
            *certain.entry(end).or_default() += u64::from(is_certain);
        }
        assert!(certain.values().all(|hits| *hits <= LIMIT), "{what}: {certain:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weirs_that_split_a_limit_never_exceed_it_and_use_it_up() {
    // a machine that stops for seconds looks like a Redis that does: then they reject
    let rules = format!(
        "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: {{ requests: {LIMIT}, per: 1s, coordination: split, \
         on_store_failure: deny }}"
    );
    let mut weirs = Weirs::start(3, &rules).await;
    let mut admitted = Admitted::default();
    admitted.use_all(&weirs, "three use all").await;
    weirs.all.remove(0).kill();
    admitted.use_all(&weirs, "two use all after one was killed").await;
    weirs.add().await;
    weirs.add().await;
    until("four know each other", async || weirs.sum("weir_instances") == 4 * 4).await;
    admitted.use_all(&weirs, "four use all after two have started").await;
    weirs.server.send::<()>(&["FLUSHALL"]);
    admitted.use_all(&weirs, "four use all after redis has lost its data").await;
    assert_eq!(weirs.counted("k"), 0, "nothing is counted in Redis");
    assert!(weirs.all.iter().all(|weir| weir.metric("weir_decisions_total{how=\"split\"}") > 0));
}
