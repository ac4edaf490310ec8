//! Several weir processes, each with its own proxy to one Redis.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::{task::JoinSet, time::timeout};
use tonic::transport::Channel;
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor,
    service::ratelimit::v3::{
        RateLimitRequest, rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
    },
};
use weir_proto::weir::v1::{
    AcquireRequest, acquire_request, acquire_response::Outcome, limiter_client::LimiterClient,
};

pub(crate) use weir_testing::{
    fake_redis::FakeRedis,
    redis_cluster::Cluster,
    redis_sentinel::MonitoredMaster,
    redis_server::{Server, free_port},
    wait::{DEADLINE, until, within},
};

use crate::{
    child::Serving,
    proxy::Proxy,
    wire::{descriptor, hits, request},
};

/// `WEIR_DECISION_BUDGET` of these weirs.
const BUDGET: Duration = Duration::from_millis(500);

/// The time that a response may take beyond the budget, because a busy machine delays it. It is shorter than the
/// `REDIS_TIMEOUT` of these weirs, so a response that ignores the budget fails the test.
const SLACK: Duration = Duration::from_millis(2_500);

/// Weirs that know of each other, and the Redis that they share.
pub(crate) struct Weirs {
    pub(crate) server: Server,
    pub(crate) all: Vec<Weir>,
    /// Holds the rules.
    dir: TempDir,
}

/// A weir, and its proxy to Redis.
pub(crate) struct Weir {
    pub(crate) proxy: Proxy,
    serving: Serving,
    client: RateLimitServiceClient<Channel>,
}

// === impl Weirs ===

impl Weirs {
    /// Starts `count` weirs that serve `rules`, and waits until they know each other and Redis.
    pub(crate) async fn start(count: usize, rules: &str) -> Self {
        let server = Server::start();
        let dir = tempfile::tempdir().expect("a directory");
        // the added rule shows whether Redis replies
        let rules = format!(
            "{rules}\n  - key: probe\n    rate_limit: {{ requests: 1000000, per: 365d, coordination: strict }}\n"
        );
        fs::write(dir.path().join("rules.yaml"), rules).expect("a file in it");
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(Weir::start(&server, dir.path().to_str().expect("a plain path")).await);
        }
        let weirs = Self { server, all, dir };
        until("all instances know each other", async || {
            weirs.sum("weir_instances") == (count * count) as u64
        })
        .await;
        weirs.wait_for_redis().await;
        weirs
    }

    /// Starts one more weir.
    pub(crate) async fn add(&mut self) {
        let rules = self.dir.path().to_str().expect("a plain path");
        self.all.push(Weir::start(&self.server, rules).await);
    }

    /// Sends `count` hits of `key` to each weir, all at once. Returns how many were admitted.
    pub(crate) async fn send_each(&self, key: &str, count: usize) -> u64 {
        let mut requests = JoinSet::new();
        for weir in &self.all {
            for _ in 0..count {
                requests.spawn(weir.send_hits(key, 1));
            }
        }
        requests.join_all().await.into_iter().map(u64::from).sum()
    }

    /// Sends hits until every weir rejects them and Redis counts at least `counted` hits, since held hits may be
    /// returned and admitted later. Returns how many were admitted.
    pub(crate) async fn exhaust(&self, key: &str, counted: u64) -> u64 {
        let mut admitted = 0;
        until("all hits are used", async || {
            let now = self.send_each(key, 10).await;
            admitted += now;
            now == 0 && self.counted(key) >= counted
        })
        .await;
        admitted
    }

    /// Waits until each weir receives replies from Redis.
    pub(crate) async fn wait_for_redis(&self) {
        for weir in &self.all {
            until("redis replies", async || {
                let before = weir.metric("weir_decisions_total{how=\"waited\"}");
                weir.send_hits("probe", 0).await;
                weir.metric("weir_store_unavailable") == 0
                    && weir.metric("weir_decisions_total{how=\"waited\"}") > before
            })
            .await;
        }
    }

    /// Returns the sum over all weirs of the metric with this name and labels.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        self.all.iter().map(|weir| weir.metric(name)).sum()
    }

    /// Returns the hits of `key` that Redis counts.
    pub(crate) fn counted(&self, key: &str) -> u64 {
        let keys: Vec<String> = self.server.send(&["KEYS", &format!("*{{shop|{key}=*")]);
        let counts = keys.iter().map(|key| self.server.send::<Option<u64>>(&["GET", key]));
        counts.flatten().sum()
    }
}

// === impl Weir ===

impl Weir {
    /// Starts one with its own proxy to `server` and the rules in `rules`.
    async fn start(server: &Server, rules: &str) -> Self {
        Self::start_with(server, rules, &[]).await
    }

    /// Starts one with its own proxy to `server` and the rules in `rules`. `variables` override its environment.
    pub(crate) async fn start_with(server: &Server, rules: &str, variables: &[(&str, &str)]) -> Self {
        let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
        let (address, budget) = (proxy.address().to_string(), format!("{}ms", BUDGET.as_millis()));
        let own = [
            ("REDIS_URL", &*address),
            ("REDIS_TIMEOUT", "5s"),
            ("WEIR_DECISION_BUDGET", &budget),
            ("WEIR_STOP_DELAY", "0"),
        ];
        let serving = Serving::start(rules, &[&own, variables].concat());
        let address = format!("http://{}", serving.address("grpc"));
        let client = RateLimitServiceClient::connect(address).await.expect("it listens");
        Self { proxy, serving, client }
    }

    /// Sends one hit of `key`, which may be followed by `=` and a value. Checks that it is decided within the budget.
    /// Returns whether it was admitted.
    pub(crate) async fn send(&self, key: &str) -> bool {
        self.send_hits(key, 1).await
    }

    /// Does the same for `count` hits. The future does not borrow the weir, so that several can run at once.
    pub(crate) fn send_hits(&self, key: &str, count: u64) -> impl Future<Output = bool> + use<> {
        let (mut client, key) = (self.client.clone(), key.to_owned());
        async move {
            let entry = key.split_once('=').unwrap_or((&key, "v"));
            let response = client.should_rate_limit(request("shop", [hits(count, descriptor([entry]))]));
            let begun = Instant::now();
            let response = timeout(DEADLINE, response).await.expect("it ends").expect("a response");
            assert!(begun.elapsed() < BUDGET + SLACK, "{:?}", begun.elapsed());
            response.into_inner().overall_code() == Code::Ok
        }
    }

    /// Waits up to so many seconds for a hit of `key`. Returns whether it was admitted.
    pub(crate) fn acquire(&self, key: &str, max_wait: i64) -> impl Future<Output = bool> + use<> {
        let address = format!("http://{}", self.grpc_address());
        let asked = AcquireRequest {
            domain: "shop".to_owned(),
            entries: vec![acquire_request::Entry { key: key.to_owned(), value: "v".to_owned() }],
            hits: 1,
            max_wait: Some(prost_types::Duration { seconds: max_wait, nanos: 0 }),
            ..AcquireRequest::default()
        };
        async move {
            let mut client = LimiterClient::connect(address).await.expect("it listens");
            let response = client.acquire(asked).await.expect("a response");
            response.into_inner().outcome() == Outcome::Admitted
        }
    }

    /// Sends one request with `descriptors`.
    pub(crate) async fn send_all(&self, descriptors: Vec<RateLimitDescriptor>) {
        let asked = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 1 };
        let response = self.client.clone().should_rate_limit(asked).await.expect("a response");
        assert!(!response.into_inner().statuses.is_empty());
    }

    /// Returns its resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.serving.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix(" kB"));
        line.and_then(|kib| kib.trim().parse::<u64>().ok()).expect("a number of KiB") * 1_024
    }

    /// Returns the address of its gRPC server.
    pub(crate) fn grpc_address(&self) -> &str {
        self.serving.address("grpc")
    }

    pub(crate) fn debug_address(&self) -> &str {
        self.serving.address("debug")
    }

    pub(crate) fn http_address(&self) -> &str {
        self.serving.address("http")
    }

    /// Returns the metric with this name and labels, such as `weir_decisions_total{how="waited"}`, or zero if there is
    /// none.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let (_, page) = self.page("/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().expect("a whole number"))
    }

    /// Returns the status and the body of a page of its HTTP server.
    pub(crate) fn page(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.serving.address("http")).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout that is not zero");
        let request = format!("GET {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it takes a request");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    /// Kills it, so that its leases and pending hits are lost.
    pub(crate) fn kill(self) {
        self.serving.signal("KILL");
        let (status, output) = self.serving.ended();
        assert!(!status.success(), "{output}");
    }

    /// Stops it gracefully. Returns its output.
    pub(crate) fn stop(self) -> String {
        self.serving.signal("TERM");
        let (status, output) = self.serving.ended();
        assert!(status.success(), "{output}");
        output
    }
}
