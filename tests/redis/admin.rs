//! The admin API of several weirs on one Redis: resets under load, and what they know together.

use serde_json::{Value, json};
use tokio::time::timeout;
use weir_coordinate::simulated::Random;
use weir_testing::{
    http::{self, HttpRequest},
    proxy::Faults,
};

use crate::{
    child,
    support::{DEADLINE, Server, Weir, until},
    wire::descriptor,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: strict
    rate_limit: { requests: 50, per: 1h, coordination: strict }
  - key: lease
    rate_limit: { requests: 50, per: 1h, coordination: lease }
  - key: interval
    rate_limit: { requests: 50, per: 1h, coordination: interval }
  - key: bucket
    rate_limit: { requests: 50, per: 24h, algorithm: token_bucket, coordination: lease }
  - key: reference
    rate_limit: { requests_per_unit: 50, unit: hour }
  - key: split
    rate_limit: { requests: 60, per: 1s, coordination: split }
  - key: hot
    rate_limit: { requests: 4000000000, per: 365d, coordination: interval }
  - key: probe
    rate_limit: { requests: 1000000, per: 365d, coordination: strict }
";

struct Fleet {
    server: Server,
    all: Vec<Weir>,
    rules: tempfile::TempDir,
}

impl Fleet {
    async fn start(count: usize) -> Self {
        let (server, dir) = (Server::start(), tempfile::tempdir().expect("a directory"));
        std::fs::write(dir.path().join("shop.yaml"), RULES).expect("a file in it");
        let mut all = Vec::new();
        for _ in 0..count {
            let rules = dir.path().to_str().expect("a plain path");
            let variables = [("WEIR_ADMIN", "full"), ("WEIR_RECORD", "15m"), ("WEIR_MAX_WAIT", "1h")];
            all.push(Weir::start_with(&server, rules, &variables).await);
        }
        let fleet = Self { server, all, rules: dir };
        until("all instances know each other", async || {
            fleet.all.iter().all(|weir| weir.metric("weir_instances") == count as u64)
        })
        .await;
        fleet
    }

    /// Returns the answer of weir `i`, and its status.
    fn ask(&self, i: usize, request: HttpRequest) -> (u16, Value) {
        let address = self.all[i].debug_address().parse().expect("an address");
        let response = http::send(address, &request.to("localhost"));
        let answer = serde_json::from_str(&response.body);
        (response.status, answer.unwrap_or_else(|error| panic!("{error}: {response:?}")))
    }

    fn get(&self, i: usize, path: &str) -> Value {
        self.ask(i, HttpRequest::get(path)).1
    }

    fn reset(&self, i: usize, key: &str) -> (u16, Value) {
        let body = json!({ "domain": "shop", "entries": [{ "key": key, "value": "v" }] });
        self.ask(i, HttpRequest::post("/v1/reset", body.to_string()).with("content-type", "application/json"))
    }

    /// Asks all weirs for hits of `key` until each rejects them. Returns how many were admitted.
    async fn exhaust(&self, key: &str) -> u64 {
        let mut admitted = 0;
        loop {
            let mut now = 0;
            for weir in &self.all {
                now += u64::from(weir.send(key).await);
            }
            admitted += now;
            if now == 0 {
                return admitted;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_frees_a_counter_at_all_weirs() {
    let fleet = Fleet::start(3).await;
    for key in ["strict", "lease", "interval", "bucket", "reference"] {
        // each weir may use all of it before it hears of the others; what the rest may add is in leases
        let most = if key == "interval" { 150 } else { 50 + 15 };
        let admitted = fleet.exhaust(key).await;
        assert!((50..=most).contains(&admitted), "{key}: {admitted}");
        // what is still held goes back or is used
        fleet.exhaust(key).await;
        let (status, answer) = fleet.reset(1, key);
        assert_eq!(
            (status, &answer["scope"], &answer["note"]),
            (200, &json!("fleet"), &Value::Null),
            "{key}: {answer}"
        );
        assert_eq!(answer["was"][0]["tiers"][0]["remaining"], 0, "{key}: {answer}");
        for weir in &fleet.all {
            assert!(weir.send(key).await, "{key} is free at each of them");
        }
        let admitted = 3 + fleet.exhaust(key).await;
        assert!((50..=most).contains(&admitted), "{key}: {admitted} after the reset");
    }
    let audit = fleet.get(1, "/v1/audit?kind=reset");
    assert_eq!(audit["items"].as_array().map(Vec::len), Some(5), "{audit}");
    assert!(audit["items"][4]["what"].as_str().is_some_and(|what| what.contains("strict=v")), "{audit}");
}

/// Their hits would be free in an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_wakes_the_callers_that_wait_at_any_weir() {
    let fleet = Fleet::start(2).await;
    for key in ["strict", "lease"] {
        fleet.exhaust(key).await;
        let waiting: Vec<_> = fleet.all.iter().map(|weir| tokio::spawn(weir.acquire(key, 3_600))).collect();
        until("both wait", async || fleet.all.iter().all(|weir| weir.metric("weir_waiters") == 1)).await;
        let (status, answer) = fleet.reset(0, key);
        assert_eq!(status, 200, "{answer}");
        for admitted in waiting {
            let admitted = timeout(DEADLINE, admitted).await.expect("an answer in time");
            assert!(admitted.expect("no panic"), "{key} is free at each of them");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_a_reset_is_an_error() {
    let fleet = Fleet::start(2).await;
    assert!((50..=65).contains(&fleet.exhaust("strict").await));
    fleet.all[0].proxy.set(Faults { drops_requests: true, ..Faults::default() });
    let (status, answer) = fleet.reset(0, "strict");
    assert_eq!(status, 503, "{answer}");
    assert!(
        answer["detail"].as_str().is_some_and(|detail| detail.starts_with("The store gave up: ")),
        "{answer}"
    );
    assert!(!fleet.all[1].send("strict").await);
    let (status, answer) = fleet.reset(0, "unknown");
    assert_eq!(status, 404, "{answer}");
    let _ = &fleet.server;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_weir_answers_for_all_of_them() {
    let fleet = Fleet::start(3).await;
    for (i, weir) in fleet.all.iter().enumerate() {
        for _ in 0..10 * (i + 1) {
            weir.send("probe=all").await;
        }
        weir.send(&format!("probe=only{i}")).await;
    }
    until("the weirs have told each other", async || {
        let instances = fleet.get(0, "/v1/instances");
        let hot = fleet.get(2, "/v1/hot?scope=fleet");
        let names = instances["items"].as_array().map(Vec::len);
        let of = |text: &str| {
            let items = hot["items"].as_array()?;
            items.iter().find(|item| item["text"] == text)?["hits"].as_u64()
        };
        let all = [of("probe=all"), of("probe=only0"), of("probe=only1"), of("probe=only2")];
        (&instances["scope"], &hot["scope"]) == (&json!("fleet"), &json!("fleet"))
            && names == Some(3)
            && all == [Some(60), Some(1), Some(1), Some(1)]
    })
    .await;
    // garbage in the store hides nobody
    fleet.server.send::<i64>(&[
        "HSET",
        "{weir:instances}:fleet",
        "evil",
        "99999999999999999 {\"instance\": 7}",
    ]);
    fleet.server.send::<i64>(&["HSET", "{weir:instances}:fleet", "worse", "\u{fffd}"]);
    until("an answer without it", async || {
        let (status, instances) = fleet.ask(1, HttpRequest::get("/v1/instances"));
        status == 200 && instances["items"].as_array().map(Vec::len) == Some(3)
    })
    .await;
    let stopped = fleet.get(0, "/v1/instances");
    let is_this = |item: &&Value| item["is_this"] == true;
    assert_eq!(stopped["items"].as_array().map(|items| items.iter().filter(is_this).count()), Some(1));
}

/// One weir, and 49 others that tell what it tells.
#[tokio::test(flavor = "multi_thread")]
async fn one_weir_answers_for_fifty() {
    const KEY: &str = "{weir:instances}:fleet";
    let fleet = Fleet::start(1).await;
    for _ in 0..10 {
        fleet.all[0].send("probe=all").await;
    }
    let name = fleet.get(0, "/v1/instance")["name"].as_str().expect("a name").to_owned();
    until("the weir knows fifty", async || {
        let Some(own) = fleet.server.send::<Option<String>>(&["HGET", KEY, &name]) else { return false };
        // again and again, since a summary is of ten seconds
        for i in 0..49 {
            fleet.server.send::<i64>(&["HSET", KEY, &format!("copy-{i:02}"), &own]);
        }
        let (instances, hot) = (fleet.get(0, "/v1/instances"), fleet.get(0, "/v1/hot?scope=fleet"));
        let of_all =
            hot["items"].as_array().and_then(|items| items.iter().find(|item| item["text"] == "probe=all"));
        let names = instances["items"].as_array().map(Vec::len);
        names == Some(50) && of_all.is_some_and(|item| item["hits"] == 500 && item["at_least"] == 500)
    })
    .await;
}

/// By the exact mode, all of them together decide as one limiter does.
#[tokio::test(flavor = "multi_thread")]
async fn what_several_weirs_have_recorded_is_replayed_together() {
    let fleet = Fleet::start(3).await;
    assert_eq!(fleet.exhaust("strict").await, 50);
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain path").to_owned();
    let (file, key) = (path("traffic"), path("traffic.key"));
    let mut record = vec!["record", "--minutes", "0", "--output", &file];
    fleet.all.iter().for_each(|weir| record.extend(["--address", weir.debug_address()]));
    let recorded = child::run(&record, &[]);
    assert!(recorded.status.success(), "{}", child::stderr(&recorded));
    let rules = fleet.rules.path().to_str().expect("a plain path");
    let replay = ["replay", &file, "--config", rules, "--key-file", &key, "--json"];
    let replayed = child::run(&replay, &[]);
    let told: Value = serde_json::from_str(&child::stdout(&replayed)).expect("a result");
    let of_rule = |told: &Value| {
        let rules = told["rules"].as_array().cloned().unwrap_or_default();
        rules.into_iter().find(|row| row["rule"] == "shop.strict").unwrap_or_default()
    };
    let row = of_rule(&told);
    assert_eq!([&row["admitted_old"], &row["admitted_new"]], [&json!(50), &json!(50)], "{told}");
    assert_eq!(row["rejected_old"], row["rejected_new"], "{told}");
    assert!(told["unknown"].to_string().contains("One exact limiter decides for all instances"), "{told}");
}

/// Each weir has a part of the traffic of 100,000 keys, by Zipf's law.
#[tokio::test(flavor = "multi_thread")]
async fn the_hottest_counters_of_all_weirs_are_right_within_their_error() {
    const KEYS: usize = 100_000;
    let fleet = Fleet::start(3).await;
    let weights: Vec<f64> =
        (1..=KEYS).map(|rank| 1.0 / f64::from(u32::try_from(rank).expect("few"))).collect();
    let sums: Vec<f64> = weights
        .iter()
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let (all, mut truth, mut random) = (sums[KEYS - 1], vec![0_u64; KEYS], Random::new(7));
    // within the minute that is looked at
    for turn in 0..120 {
        let drawn = (0..100).map(|_| {
            let at = f64::from((random.next() >> 32) as u32) / f64::from(u32::MAX) * all;
            sums.partition_point(|sum| *sum < at).min(KEYS - 1)
        });
        let drawn: Vec<usize> = drawn.collect();
        for key in &drawn {
            truth[*key] += 1;
        }
        let descriptors = drawn.iter().map(|key| descriptor([("hot", &*key.to_string())])).collect();
        fleet.all[turn % 3].send_all(descriptors).await;
    }
    let asked: u64 = truth.iter().sum();
    let mut ranks: Vec<usize> = (0..KEYS).collect();
    ranks.sort_by_key(|key| std::cmp::Reverse(truth[*key]));
    let mut last = Value::Null;
    until("the weirs have told each other", async || {
        last = fleet.get(1, "/v1/hot?scope=fleet&limit=20");
        let items = last["items"].as_array().cloned().unwrap_or_default();
        let of = |item: &Value, name: &str| item[name].as_u64().unwrap_or_default();
        let key = |item: &Value| item["text"].as_str()?.strip_prefix("hot=")?.parse::<usize>().ok();
        let is_right = |item: &Value| {
            key(item).is_some_and(|key| (of(item, "at_least")..=of(item, "at_most")).contains(&truth[key]))
        };
        let listed: Vec<usize> = items.iter().filter_map(key).collect();
        // what sampling adds is within the error with 95 % probability
        items.len() == 20
            && items.iter().filter(|item| is_right(item)).count() >= 16
            && ranks[..10].iter().all(|key| listed.contains(key))
            && of(&items[0], "at_most") - of(&items[0], "at_least") < asked / 10
    })
    .await;
}
