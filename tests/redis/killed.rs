//! Weirs that are killed while they hold leases and pending hits.

use std::collections::BTreeMap;

use tokio::task::JoinSet;
use weir_limit::{Period, Timestamp};
use weir_store::clock::{Clock as _, SystemClock};

use crate::support::{DEADLINE, Weirs, until, within};

const LIMIT: u64 = 120;

const PERIOD: Period = Period::from_secs(2);

/// Returns rules with a lease that is not returned during the test.
fn leased(tier: &str) -> String {
    format!(
        "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: {{ requests: {LIMIT}, {tier}, \
         coordination: lease, sync_interval: 1m, on_store_failure: deny }}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_weir_loses_only_its_leases_until_the_window_ends() {
    let mut weirs = Weirs::start(3, &leased("per: 365d")).await;
    let (mut admitted, mut held) = (0, 0);
    until("the weir holds a lease", async || {
        admitted += u64::from(weirs.all[0].send("k").await);
        held = weirs.counted("k") - admitted;
        held > 5
    })
    .await;
    weirs.all.remove(0).kill();
    admitted += weirs.exhaust("k", LIMIT).await;
    // at least the lease held then; at most half of this instance's share of the limit, and the next lease
    let lost = LIMIT - admitted;
    assert!((held..=2 * LIMIT / (2 * 3)).contains(&lost), "{lost} lost, {held} held");
    until("the others know of two instances", async || weirs.sum("weir_instances") == 2 * 2).await;
}

/// The start and the end of a request that was admitted.
type AdmittedRequest = (Timestamp, Timestamp);

/// Sends `count` requests to each weir, all at once. Returns the admitted ones.
async fn send(weirs: &Weirs, count: usize) -> Vec<AdmittedRequest> {
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
    requests.join_all().await.into_iter().flatten().collect()
}

/// The next window has the whole limit again, and never more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_killed_weir_are_available_in_the_next_window() {
    let mut weirs = Weirs::start(3, &leased("per: 2s")).await;
    let mut passed = send(&weirs, 5).await;
    weirs.all.remove(0).kill();
    let killed_in = SystemClock.now().window_end(PERIOD);
    until("the whole limit of a later window is used", async || {
        passed.extend(send(&weirs, 5).await);
        // a request that started in one window and ended in another may belong to either
        let mut touched = BTreeMap::<Timestamp, u64>::new();
        for (begun, ended) in &passed {
            let (first, last) = (begun.window_end(PERIOD), ended.window_end(PERIOD));
            *touched.entry(first).or_default() += 1;
            if last != first {
                *touched.entry(last).or_default() += 1;
            }
        }
        touched.into_iter().any(|(window, hits)| window > killed_in && hits >= LIMIT)
    })
    .await;
    let mut certain = BTreeMap::<Timestamp, u64>::new();
    for (begun, ended) in passed {
        let window = begun.window_end(PERIOD);
        *certain.entry(window).or_default() += u64::from(ended.window_end(PERIOD) == window);
    }
    assert!(certain.values().all(|hits| *hits <= LIMIT), "{certain:?}");
}

/// With a sliding window, no interval exceeds the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_killed_weir_make_no_interval_exceed_the_limit() {
    let mut weirs = Weirs::start(3, &leased("per: 2s, algorithm: sliding_window")).await;
    let mut passed = send(&weirs, 5).await;
    weirs.all.remove(0).kill();
    let killed = SystemClock.now();
    // long enough for all earlier hits to expire
    until("twice the limit was admitted", async || {
        passed.extend(send(&weirs, 5).await);
        passed.iter().filter(|(begun, _)| *begun > killed).count() as u64 >= 2 * LIMIT
    })
    .await;
    passed.sort_unstable();
    for (first, (begun, _)) in passed.iter().enumerate() {
        let within = passed[first..].iter().filter(|(_, ended)| ended.since(*begun) < PERIOD).count();
        assert!(within as u64 <= LIMIT, "{within} within a period");
    }
}

/// In `interval` mode, only the hits that the killed weir had not reported are lost, and may be admitted again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_weir_causes_an_overshoot_of_its_unreported_hits_at_most() {
    let rules = format!(
        "domain: shop\ndescriptors:\n  - key: k\n    rate_limit: {{ requests: {LIMIT}, per: 365d, \
         coordination: interval }}"
    );
    let mut weirs = Weirs::start(3, &rules).await;
    let mut admitted = weirs.send_each("k", 10).await;
    until("the hits are reported", async || weirs.counted("k") == admitted).await;
    for _ in 0..20 {
        admitted += u64::from(weirs.all[0].send("k").await);
    }
    weirs.all.remove(0).kill();
    // the others receive the hits that it reported
    let unreported = admitted - weirs.counted("k");
    assert!(unreported <= 20, "{unreported} of the last hits are unreported");
    loop {
        let now = weirs.send_each("k", 1).await;
        admitted += now;
        // a pause of a long period may last a minute
        let is_reported = async || weirs.counted("k") + unreported >= admitted;
        within(DEADLINE * 3, "the hits are reported", is_reported).await;
        if now == 0 {
            break;
        }
    }
    // each may have missed the last two syncs of the other
    assert!(admitted <= LIMIT + unreported + 2 * 2, "{admitted} admitted, {unreported} unreported");
    assert_eq!(weirs.counted("k") + unreported, admitted);
}
