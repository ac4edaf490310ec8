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
use weir::proto::envoy::service::ratelimit::v3::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};

use super::{DEADLINE, Server, until};
use crate::{
    child::Serving,
    proxy::Proxy,
    wire::{descriptor, hits, request},
};

/// `WEIR_DECISION_BUDGET` of these weirs.
const BUDGET: Duration = Duration::from_millis(500);

/// What an answer may take beyond the budget: a busy machine's scheduling. Less than `REDIS_TIMEOUT` here, which is what
/// an answer would take that does not mind its budget.
const SLACK: Duration = Duration::from_millis(2_500);

/// Weirs that know of each other, and the Redis that they share.
pub(crate) struct Weirs {
    pub(crate) server: Server,
    pub(crate) all: Vec<Weir>,
    /// Where the rules are.
    _dir: TempDir,
}

/// A weir, and its proxy to Redis.
pub(crate) struct Weir {
    pub(crate) proxy: Proxy,
    serving: Serving,
    client: RateLimitServiceClient<Channel>,
}

// === impl Weirs ===

impl Weirs {
    /// `count` weirs that serve `rules`.
    pub(crate) async fn start(count: usize, rules: &str) -> Self {
        let server = Server::start();
        let dir = tempfile::tempdir().expect("a directory");
        // the other rule tells whether Redis answers
        let rules = format!(
            "{rules}\n  - key: probe\n    rate_limit: {{ requests: 1000000, per: 365d, coordination: strict }}\n"
        );
        fs::write(dir.path().join("rules.yaml"), rules).expect("a file in it");
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(Weir::start(&server, dir.path().to_str().expect("a plain path")).await);
        }
        let weirs = Self { server, all, _dir: dir };
        until("all know of all", async || weirs.sum("weir_instances") == (count * count) as u64).await;
        weirs.answer().await;
        weirs
    }

    /// LimitChecks each weir for `count` hits of `key`, all at once. How many pass.
    pub(crate) async fn ask_each(&self, key: &str, count: usize) -> u64 {
        let mut asked = JoinSet::new();
        for weir in &self.all {
            for _ in 0..count {
                asked.spawn(weir.asking(key, 1));
            }
        }
        asked.join_all().await.into_iter().map(u64::from).sum()
    }

    /// LimitChecks until every weir refuses and Redis counts `counted` hits at least: what is held and comes back is asked for
    /// again. How many pass.
    pub(crate) async fn exhaust(&self, key: &str, counted: u64) -> u64 {
        let mut admitted = 0;
        until("nothing is left", async || {
            let now = self.ask_each(key, 10).await;
            admitted += now;
            now == 0 && self.counted(key) >= counted
        })
        .await;
        admitted
    }

    /// Waits until each weir has answers from Redis.
    pub(crate) async fn answer(&self) {
        for weir in &self.all {
            until("redis answers", async || {
                let before = weir.metric("weir_decisions_total{how=\"waited\"}");
                weir.asking("probe", 0).await;
                weir.metric("weir_store_unavailable") == 0
                    && weir.metric("weir_decisions_total{how=\"waited\"}") > before
            })
            .await;
        }
    }

    /// The sum of the metric of that name and these labels.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        self.all.iter().map(|weir| weir.metric(name)).sum()
    }

    /// Hits of `key` that Redis counts.
    pub(crate) fn counted(&self, key: &str) -> u64 {
        let keys: Vec<String> = self.server.send(&["KEYS", &format!("*shop_{key}_*")]);
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

    /// Starts one with its own proxy to `server`, unless further variables say otherwise.
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

    /// LimitChecks for one hit of `key`, which may be followed by `=` and a value, and is decided within the budget. Whether it
    /// passes.
    pub(crate) async fn send(&self, key: &str) -> bool {
        self.asking(key, 1).await
    }

    /// As [`Weir::send`], for `count` hits, apart from the weir: others may be asked meanwhile.
    pub(crate) fn asking(&self, key: &str, count: u64) -> impl Future<Output = bool> + use<> {
        let (mut client, key) = (self.client.clone(), key.to_owned());
        async move {
            let entry = key.split_once('=').unwrap_or((&key, "v"));
            let asked = client.should_rate_limit(request("shop", [hits(count, descriptor([entry]))]));
            let begun = Instant::now();
            let answer = timeout(DEADLINE, asked).await.expect("it ends").expect("an answer");
            assert!(begun.elapsed() < BUDGET + SLACK, "{:?}", begun.elapsed());
            answer.into_inner().overall_code() == Code::Ok
        }
    }

    /// The metric of that name and these labels, as in `weir_decisions_total{how="waited"}`. Zero if there is none.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let (_, page) = self.page("/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().expect("a whole number"))
    }

    /// Status and body of a page of its HTTP door.
    pub(crate) fn page(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.serving.address("http")).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout that is not zero");
        let request = format!("GET {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it takes a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    /// Ends it at once, with all that it holds.
    pub(crate) fn kill(self) {
        self.serving.signal("KILL");
        let (status, said) = self.serving.ended();
        assert!(!status.success(), "{said}");
    }

    /// Has it stop in order.
    pub(crate) fn stop(self) {
        self.serving.signal("TERM");
        let (status, said) = self.serving.ended();
        assert!(status.success(), "{said}");
    }
}
